package router_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/edge"
)

// TestFault63Overload has ten times as many clients as there are places: those that are admitted have their whole answers, the
// others an error that says when to come back, and nothing grows with them.
func TestFault63Overload(t *testing.T) {
	const places, waits, clients = 4, 4, 80
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = places, new(waits)
	gate := make(chan struct{})
	s.Decode[0].HoldUntil(gate)
	g := routertest.Start(t, s.Config, router.Parts{})
	replies := make(chan routertest.Reply, clients)
	for range clients {
		go func() { replies <- g.Post(routertest.PathCompletions, routertest.StreamBody) }()
	}
	// The engine answers nobody yet, so whoever has an answer now was refused at once.
	for range clients - places - waits {
		r := <-replies
		if e := routertest.ErrorOf(t, r.Body); r.Status != 503 || e.Type != "ServiceUnavailableError" || r.Header.Get("X-Pdrouter-Reason") != "queue_full" ||
			r.Header.Get("Retry-After") != "1" || r.Header.Get("Retry-After-Ms") != "1000" {
			t.Fatalf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
	}
	routertest.Eventually(t, "the engine has what it may have", func() bool { return s.Decode[0].UnderWay() == places })
	if n := g.Router.Stats().Requests; n != places {
		t.Errorf("%d requests are under way; want %d", n, places)
	}
	q := g.Router.Stats().Queues[0]
	if q.InFlight != places || q.Waiting != waits || q.Waited != waits || q.Denied["queue_full"] != clients-places-waits {
		t.Errorf("the queue is %+v", q)
	}
	close(gate)
	for range places + waits {
		if got, whole := routertest.Text(t, <-replies); got != routertest.WholeText || !whole {
			t.Errorf("text %q, whole %v", got, whole)
		}
	}
	g.WaitIdle()
	if n := s.Decode[0].MostUnderWay(); n > places {
		t.Errorf("%d requests were with the engine at once; want at most %d", n, places)
	}
	if q := g.Router.Stats().Queues[0]; q.InFlight != 0 || q.Waiting != 0 {
		t.Errorf("the queue is %+v behind the end", q)
	}
	waited := 0
	for i := range places + waits {
		if sum := g.Summary(i + 1); sum.Phases.Queue > 0 {
			waited++
		}
	}
	if waited != waits {
		t.Errorf("%d summaries tell of a wait; want %d", waited, waits)
	}
}

// TestFault63QueueEnds has requests wait for a place that does not come: each is told why, and leaves nothing behind.
func TestFault63QueueEnds(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(8)
	s.Config.Timeouts.Queue, s.Config.Timeouts.Drain = 300*time.Millisecond, 100*time.Millisecond
	gate := make(chan struct{})
	s.Decode[0].HoldUntil(gate)
	g := routertest.Start(t, s.Config, router.Parts{})
	defer close(gate)
	go g.Post(routertest.PathCompletions, routertest.PlainBody)
	routertest.Eventually(t, "the place is taken", func() bool { return s.Decode[0].UnderWay() == 1 })

	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
	if routertest.ErrorOf(t, r.Body); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "queue_timeout" || r.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}

	s.Config.Timeouts.Queue = time.Hour
	if err := g.Router.Apply(s.Config, g.Parts); err != nil {
		t.Fatal(err)
	}
	waiting := func(n int) func() bool { return func() bool { return g.Router.Stats().Queues[0].Waiting == n } }
	before := runtime.NumGoroutine()
	conn, err := net.Dial("tcp", g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody))))
	routertest.Eventually(t, "it waits, also behind a reload", waiting(1))
	_ = conn.Close()
	routertest.Eventually(t, "it is gone", waiting(0))
	routertest.Eventually(t, "and its goroutine", func() bool { return runtime.NumGoroutine() <= before })
	if n := g.Router.Stats().Queues[0].Denied["client_left"]; n != 1 {
		t.Errorf("%d have left; want 1", n)
	}

	last := make(chan routertest.Reply, 1)
	go func() { last <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
	routertest.Eventually(t, "another waits", waiting(1))
	g.Stop()
	if r := <-last; r.Err == nil && r.Header.Get("X-Pdrouter-Reason") != "draining" {
		t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	if n := s.Cluster.Count("", ""); n > 1 {
		t.Errorf("the engine got %d requests; want 1", n)
	}
}

// TestFault20And63Priority has the header count only for callers with the scope, and tenants for what the configuration says.
func TestFault20And63Priority(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Models[0].MaxConcurrentRequests = 1
	s.Config.Priorities = map[string]int{"gold": 30}
	gate := make(chan struct{})
	s.Decode[0].HoldUntil(gate)
	g := routertest.Start(t, s.Config, router.Parts{Clients: tenants{}})
	body := func(name string) string { return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":16}`, name) }
	go g.Post(routertest.PathCompletions, body("first"), "Authorization", "first")
	routertest.Eventually(t, "the place is taken", func() bool { return s.Decode[0].UnderWay() == 1 })
	var wg sync.WaitGroup
	for i, c := range [][2]string{{"plain", ""}, {"liar", "-50"}, {"gold", ""}, {"scoped", "-60"}, {"scoped2", "60"}} {
		wg.Go(func() { g.Post(routertest.PathCompletions, body(c[0]), "Authorization", c[0], "X-Vllm-Priority", c[1]) })
		routertest.Eventually(t, "it waits", func() bool { return g.Router.Stats().Queues[0].Waiting == i+1 })
	}
	close(gate)
	wg.Wait()
	var got []string
	for _, q := range s.Cluster.All() {
		got = append(got, q.Prompt())
	}
	if want := "first scoped gold plain liar scoped2"; strings.Join(got, " ") != want {
		t.Errorf("served %v; want %s", got, want)
	}
	for _, q := range s.Cluster.All() {
		if q.Header.Get("X-Vllm-Priority") != "" {
			t.Errorf("the engine was sent a priority: %v", q.Header)
		}
	}
}

// TestFault63QueueOfRemovedModel has a reload take a model away for whose engines a request waits: it still does, and is told
// when the router closes.
func TestFault63QueueOfRemovedModel(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Models[0].MaxConcurrentRequests = 1
	s.Config.Timeouts.Queue, s.Config.Timeouts.Drain = time.Hour, 100*time.Millisecond
	gate := make(chan struct{})
	s.Decode[0].HoldUntil(gate)
	g := routertest.Start(t, s.Config, router.Parts{})
	defer close(gate)
	go g.Post(routertest.PathCompletions, routertest.PlainBody)
	routertest.Eventually(t, "the place is taken", func() bool { return s.Decode[0].UnderWay() == 1 })
	last := make(chan routertest.Reply, 1)
	go func() { last <- g.Post(routertest.PathCompletions, routertest.PlainBody) }()
	queue := g.Router.Debug().Queue("tiny")
	routertest.Eventually(t, "another waits", func() bool { return queue.Stats().Waiting == 1 })
	cfg := s.Config
	cfg.Models = slices.Clone(cfg.Models)
	cfg.Models[0].Name = "other"
	if err := g.Router.Apply(cfg, g.Parts); err != nil {
		t.Fatal(err)
	}
	if n := queue.Stats().Waiting; n != 1 {
		t.Errorf("%d wait behind the reload; want 1", n)
	}
	g.Router.Debug().Edge().TurnAway()
	if r := <-last; r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "draining" {
		t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	if q := queue.Stats(); q.Waiting != 0 || q.Denied["shutdown"] != 1 {
		t.Errorf("the queue is %+v", q)
	}
}

// tenants takes the Authorization header for the caller's name.
type tenants struct{}

func (tenants) Authenticate(name string) (auth.Principal, error) {
	p := auth.Principal{Subject: name, Tenant: name}
	if strings.HasPrefix(name, "scoped") {
		p.Scopes = []string{edge.ScopePriority}
	}
	return p, nil
}

// TestFault65RetryStorm has every engine fail, and clients that try three times as long as they are not told otherwise.
func TestFault65RetryStorm(t *testing.T) {
	const users = 200
	s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
	faults := map[string][]routertest.Fault{}
	for _, d := range s.Decode {
		faults[d.Name] = []routertest.Fault{{Do: routertest.DoError}}
	}
	s.SetFaults(faults)
	s.Config.Limits.Failures = 1 << 20 // nobody is taken out of use
	g := routertest.Start(t, s.Config, router.Parts{})
	var useless atomic.Int64
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for range users / 4 {
				for try := range 3 {
					r := g.Post(routertest.PathCompletions, routertest.PlainBody, "X-Stainless-Retry-Count", fmt.Sprint(try))
					if r.Status < 500 {
						t.Errorf("client %d: status %d: %s", c, r.Status, r.Body)
					}
					if r.Header.Get("X-Pdrouter-Reason") == "retry_budget" {
						if r.Status != 503 || r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("Retry-After") != "" {
							t.Errorf("status %d, header %v", r.Status, r.Header)
						}
						useless.Add(1)
					}
					if r.Header.Get("X-Should-Retry") == "false" {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if n := s.Cluster.Count("", ""); n > users+users/5+3+3 {
		t.Errorf("%d requests of users became %d", users, n)
	}
	retries := g.Router.Stats().Retries[0]
	if retries.Made == 0 || useless.Load() == 0 || retries.Refused != uint64(useless.Load()) {
		t.Errorf("%d retries, %d refused, %d answers that say so", retries.Made, retries.Refused, useless.Load())
	}
}

// TestFault47RetryAfter has the only engine ask for a second of rest: it is asked again behind it, and never if there is no time.
func TestFault47RetryAfter(t *testing.T) {
	for _, row := range []struct {
		name    string
		rest    string
		status  int
		engines int
		asked   int
	}{
		{"within the deadline", "1", 200, 1, 2},
		{"longer than the deadline", "60", 503, 1, 1},
		{"longer than a request waits", "8", 503, 1, 1},
		{"another engine is there", "60", 200, 2, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, row.engines, nil)
			s.Config.Timeouts.RequestTotal = 10 * time.Second
			next := s.Decode[0].Server.Config.Handler
			var asked []time.Time
			var mu sync.Mutex
			s.Decode[0].Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				first := r.Method == http.MethodPost && len(asked) == 0
				if r.Method == http.MethodPost {
					asked = append(asked, time.Now())
				}
				mu.Unlock()
				if first {
					w.Header().Set("Retry-After", row.rest)
					routertest.FakeError(w, 429, "RateLimitError", "429")
					return
				}
				next.ServeHTTP(w, r)
			})
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if r.Status != row.status {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
			if row.status != 200 && (r.Header.Get("Retry-After") != row.rest || r.Header.Get("X-Pdrouter-Reason") != "engine_refused") {
				t.Errorf("header %v", r.Header)
			}
			if sum := g.Summary(1); int(sum.Attempts) != row.asked {
				t.Errorf("%d attempts; want %d", sum.Attempts, row.asked)
			}
			if len(asked) == 2 && asked[1].Sub(asked[0]) < time.Second { // a bound that no slow machine breaks
				t.Errorf("asked again behind %s", asked[1].Sub(asked[0]))
			}
		})
	}
}

// TestTooManyConnections opens more connections than limits.concurrent: the next one is told so as every client is told of an error, and it
// is counted. When one has left, another is served.
func TestTooManyConnections(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Limits.Concurrent = 2
	refused := make(chan string, 1)
	g := routertest.Start(t, s.Config, router.Parts{Refused: func(status int, why string) { refused <- fmt.Sprint(status, " ", why) }})
	one, other := dial(t, g.Addr), dial(t, g.Addr)
	defer one.Close()
	const ask = "GET " + routertest.PathModels + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	status, rest, closed := routertest.RawRequest(t, g.Addr, ask)
	head, body, _ := strings.Cut(rest, "\r\n\r\n")
	if !strings.Contains(status, " 503 ") || !closed || !strings.Contains(head, "X-Pdrouter-Reason: too_many_connections") {
		t.Fatalf("%q, closed %t\n%s", status, closed, rest)
	}
	if e := routertest.ErrorOf(t, body); e.Type != "ServiceUnavailableError" {
		t.Errorf("error %+v", e)
	}
	if got := <-refused; got != "503 too_many_connections" {
		t.Errorf("counted %q", got)
	}
	_ = other.Close()
	routertest.Eventually(t, "another client is served", func() bool {
		status, _, _ := routertest.RawRequest(t, g.Addr, ask)
		select {
		case <-refused:
		default:
		}
		return strings.Contains(status, " 200 ")
	})
}
