package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/internal/routertest"
	"pdrouter/internal/shared"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// fakeKeeper is an engine that keeps responses, as stock engines do, and says in each who it is.
type fakeKeeper struct {
	*routertest.AnyEngine
	mu   sync.Mutex
	kept map[string]bool
}

func newFakeKeeper(t *testing.T, name string) *fakeKeeper {
	k := &fakeKeeper{kept: map[string]bool{}}
	k.AnyEngine = routertest.NewAnyEngine(t, func(w http.ResponseWriter, r *http.Request, body string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		var q struct {
			ID       string `json:"request_id"`
			Store    *bool  `json:"store"`
			Previous string `json:"previous_response_id"`
		}
		path := r.URL.Path
		if path == routertest.PathResponses {
			if err := json.Unmarshal([]byte(body), &q); err != nil || q.ID == "" || q.Previous != "" && !k.kept[q.Previous] {
				routertest.JSONAnswer(404, `{"error":{"message":"not found","type":"invalid_request_error","param":"response_id","code":404}}`)(w, r, "")
				return
			}
			k.kept[q.ID] = q.Store == nil || *q.Store
			routertest.JSONAnswer(200, fmt.Sprintf(`{"id":%q,"object":"response","status":"completed","error":null,"output":[],"by":%q}`, q.ID, name))(w, r, "")
			return
		}
		id := strings.TrimSuffix(strings.TrimPrefix(path, routertest.PathResponses+"/"), "/cancel")
		switch {
		case !k.kept[id]:
			routertest.JSONAnswer(404, `{"error":{"message":"not found","type":"invalid_request_error","param":"response_id","code":404}}`)(w, r, "")
		case r.URL.Query().Get("stream") == "true":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = io.WriteString(w, "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\"}\n\n")
		default:
			routertest.JSONAnswer(200, fmt.Sprintf(`{"id":%q,"status":"failed","error":{"code":"x","message":"y"},"by":%q}`, id, name))(w, r, "")
		}
	})
	return k
}

// byName are clients whose token is their tenant.
type byName struct{}

func (byName) Authenticate(authorization string) (auth.Principal, error) {
	name := strings.TrimPrefix(authorization, "Bearer ")
	return auth.Principal{Subject: "s", Tenant: name}, nil
}

// remembers returns what two gateways with one Redis remember.
func remembers(t *testing.T) (server *redistest.Server, facts [2]*shared.Cache) {
	t.Helper()
	server = redistest.Start(t)
	for i := range facts {
		db, err := redisdb.Open(redisdb.Config{Address: server.Address()})
		if err != nil {
			t.Fatal(err)
		}
		facts[i] = shared.NewCache(db, "p", "responses", nil, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = facts[i].Run(ctx) })
		t.Cleanup(func() { stop(); wg.Wait(); _ = db.Close() })
	}
	return server, facts
}

// TestStoredResponses makes responses at one gateway and asks for them at another: each goes back to the engine that has it,
// for who made it.
func TestStoredResponses(t *testing.T) {
	server, facts := remembers(t)
	keepers := []*fakeKeeper{newFakeKeeper(t, "decode-0"), newFakeKeeper(t, "decode-1")}
	cfg := routertest.AnyFleet(keepers[0].AnyEngine, keepers[1].AnyEngine)
	one := routertest.Start(t, cfg, router.Parts{Clients: byName{}, Responses: facts[0]})
	two := routertest.Start(t, cfg, router.Parts{Clients: byName{}, Responses: facts[1]})
	t.Cleanup(one.Stop) // before the other one looks for what is left behind
	const alice = "Bearer alice"
	type response struct{ ID, By, Status string }
	read := func(r routertest.Reply) (x response) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.Body), &x); err != nil {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		return x
	}
	seen := map[string]bool{}
	for i := range 8 {
		r := one.Post(routertest.PathResponses, `{"model":"tiny","input":"a"}`, "Authorization", alice)
		made := read(r)
		if r.Status != 200 || !strings.HasPrefix(made.ID, "resp_") {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		seen[made.By] = true
		routertest.Eventually(t, "it is written", func() bool { return facts[0].Stats().Waiting == 0 })
		for _, g := range []*routertest.Gateway{two, one} {
			r := g.Ask("GET", routertest.PathResponses+"/"+made.ID, "Authorization", alice)
			if got := read(r); r.Status != 200 || got.ID != made.ID || got.By != made.By || r.Header.Get("X-Pdrouter-Reason") == "" || r.Header.Get("X-Pdrouter-Decode") != made.By {
				t.Errorf("%d: status %d, header %v: %s; made by %s", i, r.Status, r.Header, r.Body, made.By)
			}
			if r := g.Ask("POST", routertest.PathResponses+"/"+made.ID+"/cancel", "Authorization", alice); r.Status != 200 || read(r).By != made.By {
				t.Errorf("cancel: status %d: %s", r.Status, r.Body)
			}
			if r := g.Ask("GET", routertest.PathResponses+"/"+made.ID+"?stream=true&starting_after=1&x=y", "Authorization", alice); r.Status != 200 || r.Err != nil ||
				!strings.HasSuffix(r.Body, "data: {\"type\":\"response.completed\"}\n\n") {
				t.Errorf("stream: status %d, %v: %q", r.Status, r.Err, r.Body)
			}
			next := g.Post(routertest.PathResponses, `{"model":"tiny","input":"b","previous_response_id":"`+made.ID+`"}`, "Authorization", alice)
			if got := read(next); next.Status != 200 || got.By != made.By {
				t.Errorf("next: status %d: %s; the one before is by %s", next.Status, next.Body, made.By)
			}
			for _, r := range []routertest.Reply{
				g.Ask("GET", routertest.PathResponses+"/"+made.ID, "Authorization", "Bearer bob"),
				g.Ask("POST", routertest.PathResponses+"/"+made.ID+"/cancel", "Authorization", "Bearer bob"),
				g.Post(routertest.PathResponses, `{"model":"tiny","input":"b","previous_response_id":"`+made.ID+`"}`, "Authorization", "Bearer bob"),
				g.Ask("GET", routertest.PathResponses+"/resp_none", "Authorization", alice),
			} {
				if r.Status != 404 || r.Header.Get("X-Pdrouter-Reason") != "unknown_response" || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
				}
				routertest.ErrorOf(t, r.Body)
			}
		}
	}
	if len(seen) != 2 {
		t.Errorf("made by %v; want by both", seen)
	}
	for _, k := range keepers {
		for _, q := range k.All() {
			if strings.Contains(q.URI, "x=y") || strings.Contains(q.URI, "?") && q.URI[strings.Index(q.URI, "?"):] != "?starting_after=1&stream=true" {
				t.Errorf("the engine was asked for %s", q.URI)
			}
		}
	}
	if s := two.Summary(1); s.Route != routertest.PathResponses+"/{id}" {
		t.Errorf("route %q", s.Route)
	}
	if r := one.Ask("DELETE", routertest.PathResponses+"/resp_a", "Authorization", alice); r.Status != 405 || r.Header.Get("Allow") != "GET" {
		t.Errorf("DELETE: status %d, header %v", r.Status, r.Header)
	}
	if r := one.Ask("GET", routertest.PathResponses+"/resp_a?stream=perhaps", "Authorization", alice); r.Status != 404 {
		t.Errorf("status %d", r.Status)
	}

	kept := read(one.Post(routertest.PathResponses, `{"model":"tiny","input":"a","store":false}`, "Authorization", alice))
	if r := one.Ask("GET", routertest.PathResponses+"/"+kept.ID, "Authorization", alice); r.Status != 404 {
		t.Errorf("one that is not kept: status %d", r.Status)
	}
	server.Kill()
	made := read(one.Post(routertest.PathResponses, `{"model":"tiny","input":"a"}`, "Authorization", alice))
	if r := one.Ask("GET", routertest.PathResponses+"/"+made.ID, "Authorization", alice); r.Status != 200 {
		t.Errorf("without Redis, where it was made: status %d: %s", r.Status, r.Body)
	}
	if r := two.Ask("GET", routertest.PathResponses+"/"+made.ID, "Authorization", alice); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "responses_unknown" || r.Header.Get("Retry-After") == "" {
		t.Errorf("without Redis, elsewhere: status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
}

// TestStoredResponseOfALostEngine asks for one whose engine is down, and then not of the configuration any more.
func TestStoredResponseOfALostEngine(t *testing.T) {
	facts := shared.NewCache(nil, "p", "responses", nil, slog.New(slog.DiscardHandler))
	keeper, other := newFakeKeeper(t, "decode-0"), newFakeKeeper(t, "decode-1")
	cfg := routertest.AnyFleet(keeper.AnyEngine, other.AnyEngine)
	parts := router.Parts{Planner: routertest.FirstUsable{}, Responses: facts}
	g := routertest.Start(t, cfg, parts)
	var made struct{ ID, By string }
	if r := g.Post(routertest.PathResponses, `{"model":"tiny","input":"a"}`); json.Unmarshal([]byte(r.Body), &made) != nil || made.By != "decode-0" {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	_ = keeper.Server.Listener.Close()
	keeper.Server.CloseClientConnections()
	routertest.Eventually(t, "the engine is down", func() bool { return !g.Router.Stats().Engines[0].Up })
	if r := g.Ask("GET", routertest.PathResponses+"/"+made.ID); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "no_engine" || r.Header.Get("Retry-After") == "" {
		t.Errorf("down: status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	without := cfg
	without.Models = []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: cfg.Models[0].Engines[1:]}}
	parts.Log = g.Parts.Log
	if err := g.Router.Apply(without, parts); err != nil {
		t.Fatal(err)
	}
	if r := g.Ask("GET", routertest.PathResponses+"/"+made.ID); r.Status != 404 || r.Header.Get("X-Pdrouter-Reason") != "response_engine_gone" {
		t.Errorf("gone: status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	if n := len(other.All()); n != 0 {
		t.Errorf("the other engine was asked %d times", n)
	}
}
