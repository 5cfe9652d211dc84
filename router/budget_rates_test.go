package router_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// TestRetriesServeWhereAnEngineIsIdle has engines refuse or fail every request beside an idle one that could serve it. No request
// fails, whatever the rate.
func TestRetriesServeWhereAnEngineIsIdle(t *testing.T) {
	bothPrefill := func(do string) map[string][]routertest.Fault {
		return map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: do}}, "prefill-1": {{Leg: "prefill", Do: do}}}
	}
	for _, row := range []struct {
		name      string
		connector string
		p, d      int
		faults    map[string][]routertest.Fault
	}{
		{"both prefill engines 429, decode alone", connector.NamePull, 2, 1, bothPrefill(routertest.DoBusy)},
		{"both prefill engines 429, decode alone", connector.NamePush, 2, 1, bothPrefill(routertest.DoBusy)},
		{"both prefill engines 429, decode alone", connector.NameKVPlane, 2, 1, bothPrefill(routertest.DoBusy)},
		{"both prefill engines 500, decode alone", connector.NamePull, 2, 1, bothPrefill(routertest.DoError)},
		{"one of two decode engines 429", connector.NamePull, 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoBusy}}}},
		{"one of two decode engines 429", connector.NamePush, 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoBusy}}}},
		{"one of two decode engines 429", connector.NameKVPlane, 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoBusy}}}},
		{"one of two aggregated engines 500", connector.NameNone, 0, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}}},
		{"one of two aggregated engines 503", connector.NameNone, 0, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoRefuse}}}},
	} {
		for _, perSecond := range []int{1, 3, 20} {
			t.Run(fmt.Sprintf("%s, %s, %d per second", row.name, row.connector, perSecond), func(t *testing.T) {
				routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
					s, parts := routertest.NewPoolIn(t, n, row.connector, row.p, row.d)
					parts.Planner = routertest.Roles(t)
					g := routertest.StartIn(t, n, s.Config, parts)
					if row.connector != connector.NameNone {
						g.WaitWarm()
					}
					s.SetFaults(row.faults)
					const requests = 300
					var mu sync.Mutex
					failed := map[string]int{}
					var wg sync.WaitGroup
					for range requests {
						wg.Go(func() {
							if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
								mu.Lock()
								failed[fmt.Sprint(r.Status, " ", r.Header.Get("X-Pdrouter-Reason"))]++
								mu.Unlock()
							}
						})
						time.Sleep(time.Second / time.Duration(perSecond))
					}
					wg.Wait()
					s.SetFaults(nil)
					if len(failed) > 0 {
						t.Errorf("of %d requests failed: %v", requests, failed)
					}
				})
			})
		}
	}
}

// TestFault65StormOfRefusals has every engine refuse every request, with clients that try three times as they are told. The engines are
// asked ever more seldom, and not more often than the budget allows. An error keeps what the engines said of when to come back.
func TestFault65StormOfRefusals(t *testing.T) {
	for _, row := range []struct {
		name  string
		after int // seconds of Retry-After; 0: the engines do not say
	}{{"without Retry-After", 0}, {"with Retry-After", 3}} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 3)
				parts.Planner = routertest.Roles(t)
				g := routertest.StartIn(t, n, s.Config, parts)
				faults := map[string][]routertest.Fault{}
				for _, d := range s.Decode {
					faults[d.Name] = []routertest.Fault{{Do: routertest.DoBusy, N: row.after}}
				}
				s.SetFaults(faults)
				const users = 600
				var mu sync.Mutex
				reasons, bare := map[string]int{}, 0
				var wg sync.WaitGroup
				for range users {
					wg.Go(func() {
						for try := range 3 {
							r := g.Post(routertest.PathCompletions, routertest.PlainBody, "X-Stainless-Retry-Count", fmt.Sprint(try))
							mu.Lock()
							reasons[fmt.Sprint(r.Status, " ", r.Header.Get("X-Pdrouter-Reason"))]++
							if r.Header.Get("Retry-After") == "" {
								bare++
							}
							mu.Unlock()
							if r.Header.Get("X-Should-Retry") == "false" {
								return
							}
							time.Sleep(time.Second)
						}
					})
					time.Sleep(50 * time.Millisecond)
				}
				wg.Wait()
				asked := s.Cluster.Count("", "")
				t.Logf("%d users, %d requests to engines, answers %v", users, asked, reasons)
				if most := users + users/5; asked > most {
					t.Errorf("%d users became %d requests; want at most %d", users, asked, most)
				}
				if row.after > 0 && bare > 0 {
					t.Errorf("%d errors do not say when to come back", bare)
				}
			})
		})
	}
}

// TestRetryBudgetKeepsRetryAfter has the only engine refuse a request once more than the budget allows: the client is told when the engine
// may be asked.
func TestRetryBudgetKeepsRetryAfter(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 1)
		s.Config.Limits.RetryFloor = new(1)
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoBusy, N: 2}}})
		g := routertest.StartIn(t, n, s.Config, parts)
		begun := time.Now()
		r := g.Post(routertest.PathCompletions, routertest.PlainBody)
		if r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "retry_budget" || r.Header.Get("X-Should-Retry") != "false" ||
			r.Header.Get("Retry-After") != "2" || r.Header.Get("Retry-After-Ms") == "" {
			t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
		if asked, took := s.Cluster.Count("", ""), time.Since(begun); asked != 2 || took < 2*time.Second || took > 3*time.Second {
			t.Errorf("the engine was asked %d times in %v; want 2 times, 2 s apart", asked, took)
		}
	})
}

// TestRefusingEngineIsAskedEverMoreSeldom doubles the time that an engine gets no requests for with each refusal, until it serves one.
func TestRefusingEngineIsAskedEverMoreSeldom(t *testing.T) {
	var v health.State
	now := time.Unix(1_700_000_000, 0)
	refuse := func(asked, want time.Duration) {
		t.Helper()
		v.Refused(now, asked, 250*time.Millisecond)
		v.Refused(now, asked, 250*time.Millisecond) // was under way as well
		if got := v.RetryAfter(now); got != want {
			t.Errorf("rests for %v; want %v", got, want)
		}
		now = now.Add(want)
		if s := v.Standing(now, 0); s.Out != health.InUse {
			t.Errorf("is still out: %v", s.Out)
		}
	}
	for _, want := range []time.Duration{250, 500, 1000, 2000, 4000, 5000, 5000, 5000, 5000, 5000} {
		refuse(0, want*time.Millisecond)
	}
	v.SucceededWhole(now)
	refuse(0, 250*time.Millisecond)
	refuse(3*time.Second, 3*time.Second)
	refuse(time.Minute, 5*time.Second)
	v.Succeeded(health.AnswerFailed, now)
	refuse(0, 250*time.Millisecond)
}
