package routes_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// TestFault42AgentsReadWithoutTheStore: what the gateway knows is read at the gateway, whatever its store does.
func TestFault42AgentsReadWithoutTheStore(t *testing.T) {
	s := &metadatatest.FailingStore{Memory: store.NewMemory()}
	metadatatest.Put(t, s.Memory, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	metadatatest.Put(t, s.Memory, metadatatest.Record("decode-0", 7, 1, 0), nil)
	g := routestest.New(t, routes.Config{}, s)
	g.Auth = routestest.Callers{"agent": {Engine: "decode-0", Role: metadata.Decode}}
	metadatatest.Eventually(t, "both are known", func() bool { return len(g.Local.Engines()) == 2 })
	s.Set(errors.New("the store is down"), false)
	for _, path := range []string{
		"/metadata/v1/engines", "/metadata/v1/engines/prefill-0", "/metadata/v1/engines/decode-0", "/metadata/v1/engines/prefill-0/ranks/0/0/0",
		"/get_kv_connector_metadata", "/get_kv_connector_metadata/0?engine=prefill-0",
	} {
		if got := routestest.Send(t, "GET", g.URL()+path, "agent", nil); got.Status != 200 || !strings.Contains(string(got.Body), "0") {
			t.Errorf("%s: got %d %s", path, got.Status, got.Body)
		}
	}
	// Of one that it does not know it cannot say that it is not there.
	routestest.WantError(t, "unknown", routestest.Send(t, "GET", g.URL()+"/metadata/v1/engines/prefill-1", "agent", nil), 503, "store_unavailable")
	s.Set(nil, false)
	routestest.WantError(t, "unknown", routestest.Send(t, "GET", g.URL()+"/metadata/v1/engines/prefill-1", "agent", nil), 404, "not_found")
}

// A list of 1,000 engines of 8 ranks asks the store for nothing, and judges engines of one make once.
func TestListOfAThousandCostsNoExchange(t *testing.T) {
	s := &metadatatest.FailingStore{Memory: store.NewMemory()}
	metadatatest.Fleet(t, s, 1000)
	local, err := cache.New(s, cache.Config{}, metadatatest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	parts := routestest.Parts(s, nil, routestest.Callers{"agent": {Engine: "decode-1", Role: metadata.Decode}})
	parts.Copy = local
	h := routestest.Handler(t, parts)
	metadatatest.Background(t, local.Run)
	metadatatest.Eventually(t, "all are known", func() bool { return len(local.Engines()) == 1000 })
	s.Set(errors.New("asked"), false)
	list := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/metadata/v1/engines", nil)
		r.Header.Set("Authorization", "Bearer agent")
		r.Header.Set("Accept", metadata.ContentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, name := range []string{"first", "second"} {
		before := metadatatest.ProcessorTime()
		if w := list(); w.Code != 200 || strings.Count(w.Body.String(), "prefill-") != 500 || strings.Count(w.Body.String(), "decode-") != 1 {
			t.Fatalf("%s: got %d with %d bytes", name, w.Code, w.Body.Len())
		}
		t.Logf("the %s list of 1,000 engines: %v of processor time", name, metadatatest.ProcessorTime()-before)
	}
	if n := h.Verdicts(); n != 2 {
		t.Errorf("%d judgements; want one of prefill engines and one of decode engines", n)
	}
}

// TestFault41NamesAreNotTold: to an agent, an engine that it may not pair with and one that nobody has ever heard of are the
// same, on every route; the log tells them apart from nothing else.
func TestFault41NamesAreNotTold(t *testing.T) {
	s := store.NewMemory()
	couples := func(x, y string) bool {
		return strings.Contains("decode-0 prefill-0 prefill-later", x) && strings.Contains("decode-0 prefill-0 prefill-later", y)
	}
	local, err := cache.New(s, cache.Config{}, metadatatest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []routes.Copy{routestest.Direct{Store: s}, local} {
		parts := routestest.Parts(s, nil, routestest.Callers{"agent": {Engine: "decode-0", Role: metadata.Decode}, "early": {Engine: "decode-9", Role: metadata.Decode}})
		parts.Copy, parts.Paired = from, couples
		url := routestest.ServeParts(t, parts)
		metadatatest.Put(t, s, metadatatest.Record("decode-0", uint64(time.Now().UnixNano()), 1, 0), nil)
		metadatatest.Put(t, s, metadatatest.Record("prefill-secret", uint64(time.Now().UnixNano()), 1, 0), nil)
		metadatatest.Put(t, s, metadatatest.Record("prefill-half", uint64(time.Now().UnixNano()), 2, 0), nil)
		for _, path := range []string{"/metadata/v1/engines/%s", "/metadata/v1/engines/%s/ranks/0/0/0", "/get_kv_connector_metadata?engine=%s", "/get_kv_connector_metadata/0?engine=%s"} {
			for _, token := range []string{"agent", "early"} {
				var answers []string
				for _, engine := range []string{"prefill-secret", "prefill-half", "prefill-none", "decode-none"} {
					got := routestest.Send(t, "GET", url+fmt.Sprintf(path, engine), token, nil)
					got.Header.Del("Date")
					answers = append(answers, fmt.Sprint(got.Status, got.Header, string(got.Body)))
					if got.Status != http.StatusForbidden || answers[0] != answers[len(answers)-1] {
						t.Errorf("%s reads "+path+": got %s; want 403, as of the others: %s", token, engine, answers[len(answers)-1], answers[0])
					}
				}
			}
		}
		routestest.WantError(t, "one that may come yet", routestest.Send(t, "GET", url+"/metadata/v1/engines/prefill-later", "agent", nil), 404, "not_found")
	}
}

// Whoever may read certain engines sees the pairs of these.
func TestPairsOfWhoReadsCertainEngines(t *testing.T) {
	parts := routestest.Parts(store.NewMemory(), nil, routestest.Callers{"reader": {Reads: []string{"p0", "d0"}}, "agent": {Engine: "d1", Reads: []string{"p0", "d0"}}})
	parts.Pairs = func() []metadata.PairState {
		return []metadata.PairState{{Prefill: "p0", Decode: "d0"}, {Prefill: "p0", Decode: "d1"}, {Prefill: "secret", Decode: "d0"}, {Prefill: "secret", Decode: "d2"}}
	}
	url := routestest.ServeParts(t, parts)
	for token, want := range map[string]string{"reader": "p0-d0 ", "agent": "p0-d0 p0-d1 "} {
		var answer struct{ Pairs []metadata.PairState }
		if err := json.Unmarshal(routestest.Send(t, "GET", url+"/metadata/v1/pairs", token, nil).Body, &answer); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range answer.Pairs {
			got += p.Prefill + "-" + p.Decode + " "
		}
		if got != want {
			t.Errorf("%s sees %q; want %q", token, got, want)
		}
	}
}

// One caller's streams leave room for others'.
func TestWatchesOfOneCaller(t *testing.T) {
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{PerCaller: 2}}, store.NewMemory())
	g.Auth = routestest.Callers{"a": {Subject: "s", Engine: "a"}, "a again": {Subject: "other", Engine: "a"}, "rank": {Engine: "a", Ranks: []metadata.Rank{{}}}, "person": {Subject: "p"}}
	one := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "a")
	routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "a again")
	routestest.WantError(t, "the third", routestest.Send(t, "GET", g.URL()+routestest.WatchPath, "a", nil), 503, "caller_watches")
	routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "rank")
	routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "person")
	one.End()
	metadatatest.Eventually(t, "the one that was left is noticed", func() bool { return g.Watching() == 3 })
	routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "a")
}

// A key in Redis of a type that nobody here wrote costs its engine, and no other.
func TestFault43WrongTypeCostsOneEngine(t *testing.T) {
	s := metadatatest.RedisAt(t, redistest.Start(t), nil, "pdr")
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	for _, err := range []error{
		s.DB.Set(t.Context(), s.EngineKey("evil"), "x", 0).Err(),
		s.DB.ZAdd(t.Context(), s.IndexKey(), redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "evil"}).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	g := routestest.New(t, routes.Config{}, s)
	metadatatest.Eventually(t, "the copy is whole", func() bool { return g.Handler.Watches().Lost > 0 })
	w := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "all")
	w.Want("sync {}")
	var list struct{ Engines []metadata.Listed }
	if got := routestest.Send(t, "GET", g.URL()+"/metadata/v1/engines", "all", nil); got.Status != 200 || json.Unmarshal(got.Body, &list) != nil || len(list.Engines) != 1 {
		t.Errorf("list: got %d %s", got.Status, got.Body)
	}
	metadatatest.Put(t, s, metadatatest.Record("decode-0", 7, 1, 0), nil)
	w.Want(`put {"engine":"decode-0","generation":7}`)
}
