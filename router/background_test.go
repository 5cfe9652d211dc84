package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/limits"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
)

// backgroundEngine serves background responses as stock vLLM does: it answers at once, and works on until the test says what comes of it.
type backgroundEngine struct {
	srv *httptest.Server

	mu     sync.Mutex
	status map[string]string // of each response, by id
	usage  map[string]string
	made   []string // ids, in order
	looks  int
	hang   bool // a request for a response is taken and not answered
}

func newBackgroundEngine(t *testing.T, n *routertest.Network) *backgroundEngine {
	e := &backgroundEngine{status: map[string]string{}, usage: map[string]string{}}
	c := routertest.NewCluster(false)
	c.Net = n
	e.srv = c.Server(http.HandlerFunc(e.serve))
	t.Cleanup(func() { e.srv.CloseClientConnections(); e.srv.Close() })
	return e
}

func (e *backgroundEngine) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id, cancels := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, routertest.PathResponses+"/"), "/cancel")
	var q struct {
		ID       string `json:"request_id"`
		Stream   bool
		Metadata json.RawMessage
	}
	made := r.URL.Path == routertest.PathResponses
	if made && json.Unmarshal(body, &q) == nil {
		id = q.ID
	}
	e.mu.Lock()
	switch {
	case made:
		e.made = append(e.made, id)
		e.status[id], e.usage[id] = "queued", "null"
	case !strings.HasPrefix(r.URL.Path, routertest.PathResponses+"/"):
		e.mu.Unlock()
		w.WriteHeader(http.StatusOK)
		return
	case cancels && e.status[id] != "":
		e.status[id] = "cancelled"
	default:
		e.looks++
	}
	status, usage, hang := e.status[id], e.usage[id], e.hang && made
	e.mu.Unlock()
	switch {
	case hang:
		<-r.Context().Done()
	case status == "":
		routertest.JSONAnswer(404, `{"error":{"message":"not found","code":404}}`)(w, r, "")
	case made && q.Stream, r.URL.Query().Get("stream") == "true":
		w.Header().Set("Content-Type", "text/event-stream")
		if q.Metadata == nil {
			q.Metadata = json.RawMessage("null")
		}
		fmt.Fprintf(w, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"metadata\":%s}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n", q.Metadata)
		w.(http.Flusher).Flush()
		if status == "completed" {
			fmt.Fprintf(w, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":%q,\"status\":%q,\"usage\":%s}}\n\n", id, status, usage)
			return
		}
		<-r.Context().Done()
	default:
		routertest.JSONAnswer(200, fmt.Sprintf(`{"id":%q,"status":%q,"output":[],"usage":%s,"error":null}`, id, status, usage))(w, r, "")
	}
}

// becomes sets what became of a response.
func (e *backgroundEngine) becomes(id, status, usage string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status[id], e.usage[id] = status, usage
}

func (e *backgroundEngine) ids() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.made)
}

// asked is how often the engine was asked for a response.
func (e *backgroundEngine) asked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.looks
}

// rememberedHere remembers responses at one gateway.
type rememberedHere struct{ sync.Map }

func (m *rememberedHere) Put(key string, value []byte, _ time.Duration) { m.Store(key, value) }
func (m *rememberedHere) Await(string)                                  {}
func (m *rememberedHere) Get(_ context.Context, key string) ([]byte, bool, error) {
	v, ok := m.Load(key)
	b, _ := v.([]byte)
	return b, ok, nil
}

const backgroundBody = `{"model":"tiny","input":"one two three","background":true,"max_output_tokens":100}`

// charged returns what ended requests were charged, without the zeros.
func (c *counted) charged() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.used), func(n int) bool { return n == 0 })
}

// startBackground starts an engine and a gateway that limits its callers.
func startBackground(t *testing.T, n *routertest.Network, l limits.Limits, change func(*config.Config)) (*backgroundEngine, *routertest.Gateway, *counted) {
	e, c := newBackgroundEngine(t, n), newCounted(l)
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "decode-0", URL: e.srv.URL}}}}}
	if change != nil {
		change(&cfg)
	}
	return e, routertest.Start(t, cfg, router.Parts{Limiter: c, Responses: &rememberedHere{}}), c
}

// TestBackgroundNeedsALimit refuses background responses without a bound of what they may use from callers with limits, and from no others.
func TestBackgroundNeedsALimit(t *testing.T) {
	const body = `{"model":"tiny","input":"a","background":true}`
	for _, row := range []struct {
		limits limits.Limits
		status int
	}{
		{limits.Limits{Concurrent: 2}, 400},
		{limits.Limits{Tokens: 1000}, 400},
		{limits.Limits{Requests: 1000}, 200},
	} {
		routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
			e, g, c := startBackground(t, n, row.limits, nil)
			r := g.Post(routertest.PathResponses, body)
			if r.Status != row.status || row.status == 400 && (*routertest.ErrorOf(t, r.Body).Param != "max_output_tokens" || r.Header.Get("X-Pdrouter-Reason") != "bad_field") {
				t.Errorf("%+v: status %d, %v: %s", row.limits, r.Status, r.Header, r.Body)
			}
			if asked := len(e.ids()) > 0; asked != (row.status == 200) {
				t.Errorf("%+v: the engine was asked: %v", row.limits, asked)
			}
			c.ended(t, 1)
			if r := g.Post(routertest.PathResponses, strings.Replace(body, `,"background":true`, "", 1)); r.Status != 200 {
				t.Errorf("%+v: not in the background: status %d: %s", row.limits, r.Status, r.Body)
			}
		})
	}
}

// TestBackgroundHoldsItsLease has callers at their limit of concurrency: a background response counts until it has ended, and is charged once.
func TestBackgroundHoldsItsLease(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		e, g, c := startBackground(t, n, limits.Limits{Concurrent: 2, Tokens: 1 << 30}, nil)
		admitted := 0
		for range 12 {
			switch r := g.Post(routertest.PathResponses, backgroundBody); r.Status {
			case 200:
				admitted++
			case 429:
				if why := r.Header.Get("X-Pdrouter-Reason"); why != "over_limit_concurrent" {
					t.Errorf("refused for %q", why)
				}
			default:
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
		}
		if admitted != 2 {
			t.Fatalf("admitted %d of 12 where 2 are allowed", admitted)
		}
		ids := e.ids()
		look := func(id, path, says string) {
			t.Helper()
			method := http.MethodGet
			if path == "/cancel" {
				method = http.MethodPost
			}
			if r := g.Ask(method, routertest.PathResponses+"/"+id+path); r.Status != 200 || !strings.Contains(r.Body, says) {
				t.Errorf("status %d: %s; want %s", r.Status, r.Body, says)
			}
		}
		look(ids[0], "", "queued")
		if r := g.Post(routertest.PathResponses, backgroundBody); r.Status != 429 {
			t.Errorf("a look has ended a lease: status %d", r.Status)
		}
		e.becomes(ids[0], "completed", `{"input_tokens":7,"output_tokens":30,"total_tokens":37}`)
		for range 5 {
			look(ids[0], "", "completed")
		}
		if got := c.charged(); !slices.Equal(got, []int{37}) {
			t.Errorf("charged %v; want 37 once", got)
		}
		if r := g.Post(routertest.PathResponses, backgroundBody); r.Status != 200 {
			t.Errorf("one has ended: status %d", r.Status)
		}
		look(ids[1], "/cancel", "cancelled") // the engine does not say what it has used
		if got := c.charged(); !slices.Equal(got, []int{37, -1}) {
			t.Errorf("charged %v; want 37, and what was reserved", got)
		}
		looks := e.asked()
		e.becomes(e.ids()[2], "incomplete", `{"input_tokens":7,"output_tokens":100}`)
		time.Sleep(router.BackgroundPollMax)
		if got := c.charged(); !slices.Equal(got, []int{37, -1, 107}) || e.asked() != looks+1 {
			t.Errorf("charged %v behind %d looks; want 107 behind one that nobody asked for", got, e.asked()-looks)
		}
		if n := g.Router.Stats().Background; n != 0 {
			t.Errorf("%d are held", n)
		}
	})
}

// TestBackgroundEnds has a background response end in every way that is left: each ends its lease once, and within the time that is said.
func TestBackgroundEnds(t *testing.T) {
	for _, row := range []struct {
		name  string
		does  func(e *backgroundEngine, g *routertest.Gateway, id string)
		after time.Duration
		want  int
	}{
		{"failed", func(e *backgroundEngine, _ *routertest.Gateway, id string) { e.becomes(id, "failed", "null") }, router.BackgroundPollMax, 0},
		{"forgotten", func(e *backgroundEngine, _ *routertest.Gateway, id string) { e.becomes(id, "", "") }, router.BackgroundPollMax, -1},
		{"engine gone", func(e *backgroundEngine, g *routertest.Gateway, _ string) {
			parts := g.Parts
			if err := g.Router.Apply(config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "other", URL: e.srv.URL}}}}}, parts); err != nil {
				panic(err)
			}
		}, router.BackgroundPollMax, -1},
		{"never", func(*backgroundEngine, *routertest.Gateway, string) {}, time.Hour, -1},
		{"engine down", func(e *backgroundEngine, _ *routertest.Gateway, _ string) {
			_ = e.srv.Listener.Close()
			e.srv.CloseClientConnections()
		}, time.Hour, -1},
		{"gateway stopped", func(_ *backgroundEngine, g *routertest.Gateway, _ string) { g.Stop() }, 0, -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				e, g, c := startBackground(t, n, limits.Limits{Concurrent: 1}, nil)
				if r := g.Post(routertest.PathResponses, backgroundBody); r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				time.Sleep(10 * time.Minute)
				if used := c.ended(t, 0); len(used) != 0 || e.asked() > 30 {
					t.Fatalf("charged %v behind %d looks", used, e.asked())
				}
				row.does(e, g, e.ids()[0])
				time.Sleep(row.after)
				synctest.Wait()
				if used := c.ended(t, 1); !slices.Equal(used, []int{row.want}) {
					t.Errorf("charged %v; want %d", used, row.want)
				}
			})
		})
	}
}

// TestBackgroundAtShutdown has leases end with Serve: until then the limiter can tell other gateways what was charged.
func TestBackgroundAtShutdown(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		e, c := newBackgroundEngine(t, n), newCounted(limits.Limits{Tokens: 1 << 30})
		r, err := router.New(config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "decode-0", URL: e.srv.URL}}}}}, router.Parts{Limiter: c})
		if err != nil {
			t.Fatal(err)
		}
		n.Reach(r)
		ln, ended := n.Listen(), make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		go func() { ended <- r.Serve(ctx, ln) }()
		client := n.Client()
		resp, err := client.Post("http://"+ln.Addr().String()+routertest.PathResponses, "application/json", strings.NewReader(backgroundBody))
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		client.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil || !slices.Equal(c.charged(), []int{-1}) {
			t.Errorf("charged %v behind Serve: %v", c.charged(), err)
		}
		r.Close()
	})
}

// TestBackgroundOfTwoGateways has the result asked for at another gateway than the one that made it: that one charges nothing, and the first
// learns of the end itself.
func TestBackgroundOfTwoGateways(t *testing.T) {
	e, one, two := newBackgroundEngine(t, nil), newCounted(limits.Limits{Concurrent: 1, Tokens: 1 << 30}), newCounted(limits.Limits{Concurrent: 1, Tokens: 1 << 30})
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "decode-0", URL: e.srv.URL}}}}}
	known := &rememberedHere{}
	first := routertest.Start(t, cfg, router.Parts{Limiter: one, Responses: known})
	second := routertest.Start(t, cfg, router.Parts{Limiter: two, Responses: known})
	t.Cleanup(first.Stop) // before the other one looks for what is left behind
	if r := first.Post(routertest.PathResponses, backgroundBody); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	e.becomes(e.ids()[0], "completed", `{"input_tokens":7,"output_tokens":3}`)
	for range 3 {
		if r := second.Ask("GET", routertest.PathResponses+"/"+e.ids()[0]); r.Status != 200 {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
	}
	if a, b := one.ended(t, 1), two.charged(); !slices.Equal(a, []int{10}) || len(b) != 0 {
		t.Errorf("charged %v and %v; want 10 at the first", a, b)
	}
}

// TestBackgroundStream has clients of streamed background responses leave: the engine works on, so the lease is held.
func TestBackgroundStream(t *testing.T) {
	for _, row := range []struct {
		name string
		hang bool
	}{{"in the stream", false}, {"before the answer", true}} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				e, g, c := startBackground(t, n, limits.Limits{Concurrent: 1}, nil)
				e.hang = row.hang
				body := strings.Replace(backgroundBody, "{", `{"stream":true,`, 1)
				conn, err := n.Dial(t.Context(), "tcp", g.Addr)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprint(conn, routertest.RawPost(routertest.PathResponses, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
				routertest.Eventually(t, "the engine was asked", func() bool { return len(e.ids()) == 1 })
				time.Sleep(time.Second)
				_ = conn.Close()
				if s := g.Summary(1); s.Outcome != dispatch.ClientLeft {
					t.Errorf("summary %+v", s)
				}
				if r := g.Post(routertest.PathResponses, body); r.Status != 429 {
					t.Errorf("beside a response that goes on: status %d", r.Status)
				}
				id := e.ids()[0]
				e.becomes(id, "completed", `{"input_tokens":7,"output_tokens":3}`)
				if !row.hang {
					if r := g.Ask("GET", routertest.PathResponses+"/"+id+"?stream=true"); r.Status != 200 || !strings.Contains(r.Body, "response.completed") {
						t.Errorf("status %d: %s", r.Status, r.Body)
					}
				} else {
					time.Sleep(router.BackgroundPollMax)
				}
				if used := c.ended(t, 1); used[0] != 10 {
					t.Errorf("charged %v; want 10", used)
				}
			})
		})
	}
}

// TestBackgroundIsBounded refuses background responses of callers with limits beyond limits.background.
func TestBackgroundIsBounded(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		_, g, c := startBackground(t, n, limits.Limits{Tokens: 1 << 30}, func(cfg *config.Config) { cfg.Limits.Background = 3 })
		for i := range 4 {
			r := g.Post(routertest.PathResponses, backgroundBody)
			if want := map[bool]int{true: 200, false: 503}[i < 3]; r.Status != want {
				t.Errorf("response %d: status %d; want %d: %s", i, r.Status, want, r.Body)
			}
			if i == 3 && (r.Header.Get("X-Pdrouter-Reason") != "too_many_background" || r.Header.Get("Retry-After") == "" || !slices.Equal(c.ended(t, 1), []int{0})) {
				t.Errorf("header %v, charged %v", r.Header, c.ended(t, 1))
			}
		}
		if n := g.Router.Stats().Background; n != 3 {
			t.Errorf("%d are held; want 3", n)
		}
	})
}

// TestLookupsAreNotCharged asks for a response that was made in the foreground: it was charged when it was made.
func TestLookupsAreNotCharged(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		e, g, c := startBackground(t, n, limits.Limits{Tokens: 1 << 30}, nil)
		if r := g.Post(routertest.PathResponses, `{"model":"tiny","input":"a","max_output_tokens":9}`); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		made := len(c.ended(t, 1))
		e.becomes(e.ids()[0], "completed", `{"input_tokens":7,"output_tokens":9}`)
		for range 3 {
			g.Ask("GET", routertest.PathResponses+"/"+e.ids()[0])
		}
		if used := c.ended(t, made+3)[made:]; !slices.Equal(used, []int{0, 0, 0}) {
			t.Errorf("charged %v for looks", used)
		}
	})
}

// TestLookupsAtOnce has a caller with a limit of concurrency stream one background response several times: so many lookups are served at once,
// and beside them the caller may send other requests once the response has ended.
func TestLookupsAtOnce(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		e, g, _ := startBackground(t, n, limits.Limits{Concurrent: 1}, func(cfg *config.Config) { cfg.Models[0].MaxConcurrentRequests = 8 })
		if r := g.Post(routertest.PathResponses, backgroundBody); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
		id := e.ids()[0]
		var first net.Conn
		for i := range 4 {
			conn, err := n.Dial(t.Context(), "tcp", g.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "GET %s/%s?stream=true HTTP/1.1\r\nHost: a\r\n\r\n", routertest.PathResponses, id)
			head := make([]byte, 4096)
			k, err := conn.Read(head)
			if want := map[bool]string{true: " 200 ", false: " 429 "}[i == 0]; err != nil || !strings.Contains(string(head[:k]), want) {
				t.Errorf("lookup %d: %v, %.300s; want%s", i, err, head[:k], want)
			}
			if i == 0 {
				first = conn
			}
		}
		for _, q := range g.Router.Stats().Queues {
			if q.InFlight > 1 {
				t.Errorf("%d of %d places are taken", q.InFlight, q.Places)
			}
		}
		e.becomes(id, "completed", `{"input_tokens":7,"output_tokens":3}`)
		time.Sleep(router.BackgroundPollMax)
		if r := g.Post(routertest.PathResponses, `{"model":"tiny","input":"a","max_output_tokens":9}`); r.Status != 200 {
			t.Errorf("beside a lookup: status %d: %s", r.Status, r.Body)
		}
		_ = first.Close()
		time.Sleep(time.Second)
		if r := g.Ask("GET", routertest.PathResponses+"/"+id); r.Status != 200 {
			t.Errorf("after the first lookup has ended: status %d: %s", r.Status, r.Body)
		}
	})
}

// TestBackgroundFailsBefore has streamed background responses fail before their client has an event, for a reason of the gateway's: the engine
// works on, so the lease is held until the response ends. Where the engine does not know the response, the lease ends with that.
func TestBackgroundFailsBefore(t *testing.T) {
	large := fmt.Sprintf(`"metadata":{"a":%q},`, strings.Repeat("x", 128<<10))
	for _, row := range []struct {
		name, member string
		hang         bool
		reason       string
		known        bool
		want         int
	}{
		{"event too large", large, false, "answer_too_large", true, 10},
		{"event too large, forgotten", large, false, "answer_too_large", false, -1},
		{"deadline", "", true, "deadline", true, 10},
		{"deadline, forgotten", "", true, "deadline", false, -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				e, g, c := startBackground(t, n, limits.Limits{Concurrent: 1}, func(cfg *config.Config) { cfg.Limits.Event = 64 << 10 })
				e.hang = row.hang
				body := strings.Replace(backgroundBody, "{", `{"stream":true,`+row.member, 1)
				if r := g.Post(routertest.PathResponses, body); r.Header.Get("X-Pdrouter-Reason") != row.reason {
					t.Fatalf("status %d, header %v: %.300s", r.Status, r.Header, r.Body)
				}
				for range 3 {
					if r := g.Post(routertest.PathResponses, body); r.Status != 429 {
						t.Errorf("beside a response that goes on: status %d", r.Status)
					}
				}
				if n := g.Router.Stats().Background; n != 1 || len(e.ids()) != 1 {
					t.Errorf("%d leases are held, and the engine has %d responses; want one", n, len(e.ids()))
				}
				if row.known {
					e.becomes(e.ids()[0], "completed", `{"input_tokens":7,"output_tokens":3}`)
				} else {
					e.becomes(e.ids()[0], "", "")
				}
				time.Sleep(router.BackgroundPollMax)
				if used := c.ended(t, 1); !slices.Equal(used, []int{row.want}) || g.Router.Stats().Background != 0 {
					t.Errorf("charged %v, %d leases are held; want %d", used, g.Router.Stats().Background, row.want)
				}
			})
		})
	}
}
