package router_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/limits"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/edge"
	"pdrouter/router/fleet"
)

// panicky is a planner that panics from its n-th choice on.
type panicky struct {
	fleet.Planner
	from, n atomic.Int64
}

func (p *panicky) Choose(q policies.Request, f policies.Fleet, d policies.Draw) policies.Choice {
	if p.n.Add(1) >= p.from.Load() {
		panic("as told")
	}
	return p.Planner.Choose(q, f, d)
}

// AfterFailure is the planner's own, if it has one.
func (p *panicky) AfterFailure(model string) string {
	if after, ok := p.Planner.(interface{ AfterFailure(string) string }); ok {
		return after.AfterFailure(model)
	}
	return ""
}

// TestFault68Panic has a part panic: the request fails, the process and the next request live, and nothing is left.
func TestFault68Panic(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		for _, fan := range []string{"", `"n":3,`} {
			t.Run(fmt.Sprint("68 handler ", connectorName, " ", fan != ""), func(t *testing.T) {
				s := routertest.NewPool(t, connectorName, 1, 1, nil)
				p := &panicky{Planner: routertest.FirstUsable{}}
				p.from.Store(1 << 40)
				l := newCounted(limits.Limits{Concurrent: 1})
				g := routertest.Start(t, s.Config, router.Parts{Planner: p, Limiter: l})
				if connectorName != connector.NameNone {
					g.WaitWarm()
				}
				for i, body := range []string{routertest.PlainBody, routertest.StreamBody} {
					p.from.Store(0)
					r := g.Post(routertest.PathCompletions, strings.Replace(body, `"prompt"`, fan+`"prompt"`, 1))
					if e := routertest.ErrorOf(t, r.Body); r.Status != 500 || e.Type != "InternalServerError" || strings.Contains(r.Body, "as told") {
						t.Errorf("status %d: %s", r.Status, r.Body)
					}
					p.from.Store(1 << 40)
					l.ended(t, 2*i+1) // else the next one is over its limit
					if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, body)); got != routertest.WholeText || !whole {
						t.Errorf("the next one: text %q, whole %v", got, whole)
					}
					l.ended(t, 2*i+2)
				}
				g.WaitIdle()
				s.CheckNothingHeld(t)
			})
		}
	}
}

// TestFault68PanicInAStream has a part panic while an answer is relayed: an error event and the cut, and the next request is served.
func TestFault68PanicInAStream(t *testing.T) {
	f := &fakeTeller{dies: 3}
	srv := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	other := httptest.NewServer(http.HandlerFunc((&fakeTeller{dies: -1}).serve))
	t.Cleanup(func() { other.CloseClientConnections(); other.Close() })
	real := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	p := &panicky{Planner: real}
	p.from.Store(2) // the stream is to go on elsewhere
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "a", URL: srv.URL}}}}, Health: config.Health{Failures: 1 << 20}}
	cfg.Models[0].Engines = append(cfg.Models[0].Engines, config.Engine{Name: "b", URL: other.URL, Drain: true})
	g := routertest.Start(t, cfg, router.Parts{Planner: p})
	const body = `{"model":"tiny","prompt":"p","max_tokens":9,"stream":true,"temperature":0}`
	r := g.Post(routertest.PathCompletions, body)
	if r.Status != 200 || r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 || strings.Contains(r.Body, "as told") {
		t.Errorf("status %d, end %v, body %q", r.Status, r.Err, r.Body)
	}
	if p.n.Load() < 2 {
		t.Error("nothing has panicked")
	}
	if sum := g.Summary(1); sum.Outcome != dispatch.FailedAfter {
		t.Errorf("summary %+v", sum)
	}
	p.from.Store(1 << 40)
	if r := g.Post(routertest.PathCompletions, strings.Replace(body, `"max_tokens":9`, `"max_tokens":2`, 1)); r.Status != 200 {
		t.Errorf("the next one: status %d: %s", r.Status, r.Body)
	}
}

// panickyLog is a log that panics once it is told that a request has ended.
type panickyLog struct{ now *atomic.Bool }

func (panickyLog) Enabled(context.Context, slog.Level) bool { return true }
func (h panickyLog) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h panickyLog) WithGroup(string) slog.Handler          { return h }

func (h panickyLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request" && h.now.CompareAndSwap(true, false) {
		panic("as told")
	}
	return nil
}

// TestFault68PanicInTheReport has what is told of the end of requests panic, when their clients have the answers: the process lives, and so
// does the next request.
func TestFault68PanicInTheReport(t *testing.T) {
	for _, row := range []struct{ name, connector, body string }{
		{"alone", connector.NameNone, routertest.StreamBody},
		{"a pair", connector.NamePush, routertest.StreamBody},
		{"choices", connector.NamePush, strings.Replace(routertest.StreamBody, `"prompt"`, `"n":3,"prompt"`, 1)},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			log := panickyLog{new(atomic.Bool)}
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Log: slog.New(log)})
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			for range 2 {
				log.now.Store(true)
				if r := g.Post(routertest.PathCompletions, row.body); r.Status != 200 || !strings.Contains(r.Body, "[DONE]") {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				routertest.Eventually(t, "it has panicked", func() bool { return !log.now.Load() })
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
		})
	}
}

// panickyLimiter is a limiter whose next lease to end panics.
type panickyLimiter struct {
	now  atomic.Bool
	ends atomic.Int64
}

func (l *panickyLimiter) Acquire(auth.Principal, int) (edge.Lease, edge.Allowance) {
	return l, edge.Allowance{}
}

func (l *panickyLimiter) Done(int) {
	l.ends.Add(1)
	if l.now.CompareAndSwap(true, false) {
		panic("as told")
	}
}

// TestFault68PanicInTheLimits has a limiter panic as it is told of the end of a request: the request is counted and reported as every other.
func TestFault68PanicInTheLimits(t *testing.T) {
	for _, row := range []struct{ name, connector, body string }{
		{"whole", connector.NameNone, routertest.PlainBody},
		{"stream", connector.NameNone, routertest.StreamBody},
		{"choices", connector.NamePush, strings.Replace(routertest.PlainBody, `"prompt"`, `"n":3,"prompt"`, 1)},
		{"choices of a stream", connector.NamePush, strings.Replace(routertest.StreamBody, `"prompt"`, `"n":3,"prompt"`, 1)},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			l := new(panickyLimiter)
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Limiter: l})
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			l.now.Store(true)
			g.Post(routertest.PathCompletions, row.body)
			routertest.Eventually(t, "it has panicked", func() bool { return !l.now.Load() })
			if r := g.Post(routertest.PathCompletions, row.body); r.Status != 200 {
				t.Errorf("the next one: status %d: %s", r.Status, r.Body)
			}
			g.WaitIdle()
			g.Summary(2)
			if n := g.Router.Stats().Queues[0].InFlight; n != 0 || l.ends.Load() != 2 {
				t.Errorf("%d places are taken, %d leases have ended", n, l.ends.Load())
			}
			s.CheckNothingHeld(t)
		})
	}
}

// TestFault68PanicInTheLimitsOfARefusal has a limiter panic as it is told of the end of a request that the queue has refused: it is told once.
func TestFault68PanicInTheLimitsOfARefusal(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoHang}}})
	s.Config.Limits.MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(int)
	l := new(panickyLimiter)
	g := routertest.Start(t, s.Config, router.Parts{Limiter: l})
	leave(t, g, routertest.PlainBody, func() bool {
		if s.Cluster.Count("", "alone") == 0 {
			return false
		}
		l.now.Store(true)
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 500 {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
		if n := l.ends.Load(); n != 1 {
			t.Errorf("the lease has ended %d times", n)
		}
		return true
	})
	g.WaitIdle()
}

// panickyResponses panics when it is told which engine holds a response.
type panickyResponses struct{}

func (panickyResponses) Put(string, []byte, time.Duration) { panic("as told") }
func (panickyResponses) Await(string)                      {}
func (panickyResponses) Get(context.Context, string) ([]byte, bool, error) {
	return nil, false, nil
}

// TestFault68PanicBeforeTheLimits has the end of a request panic before its place and its lease are given back: they are.
func TestFault68PanicBeforeTheLimits(t *testing.T) {
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"resp_0123456789abcdef0123456789abcdef","object":"response","status":"completed"}`)
	})
	defer e.Server.Close()
	l := new(panickyLimiter)
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{Responses: panickyResponses{}, Limiter: l})
	g.Post(routertest.PathResponses, `{"model":"tiny","input":"b","store":true}`)
	g.WaitIdle()
	g.Summary(1)
	if n := g.Router.Stats().Queues[0].InFlight; n != 0 || l.ends.Load() != 1 {
		t.Errorf("%d places are taken, %d leases have ended", n, l.ends.Load())
	}
}
