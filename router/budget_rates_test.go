package router

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pdrouter/policies"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
)

// TestRetriesServeWhereAnEngineIsIdle has engines refuse or fail every request beside an idle one that could serve it. No request
// fails, whatever the rate.
func TestRetriesServeWhereAnEngineIsIdle(t *testing.T) {
	bothPrefill := func(do string) map[string][]fault {
		return map[string][]fault{"prefill-0": {{Leg: "prefill", Do: do}}, "prefill-1": {{Leg: "prefill", Do: do}}}
	}
	for _, row := range []struct {
		name      string
		connector string
		p, d      int
		faults    map[string][]fault
	}{
		{"both prefill engines 429, decode alone", connector.NamePull, 2, 1, bothPrefill(doBusy)},
		{"both prefill engines 429, decode alone", connector.NamePush, 2, 1, bothPrefill(doBusy)},
		{"both prefill engines 429, decode alone", connector.NameKVPlane, 2, 1, bothPrefill(doBusy)},
		{"both prefill engines 500, decode alone", connector.NamePull, 2, 1, bothPrefill(doError)},
		{"one of two decode engines 429", connector.NamePull, 1, 2, map[string][]fault{"decode-0": {{Do: doBusy}}}},
		{"one of two decode engines 429", connector.NamePush, 1, 2, map[string][]fault{"decode-0": {{Do: doBusy}}}},
		{"one of two decode engines 429", connector.NameKVPlane, 1, 2, map[string][]fault{"decode-0": {{Do: doBusy}}}},
		{"one of two aggregated engines 500", connector.NameNone, 0, 2, map[string][]fault{"decode-0": {{Do: doError}}}},
		{"one of two aggregated engines 503", connector.NameNone, 0, 2, map[string][]fault{"decode-0": {{Do: doRefuse}}}},
	} {
		for _, perSecond := range []int{1, 3, 20} {
			t.Run(fmt.Sprintf("%s, %s, %d per second", row.name, row.connector, perSecond), func(t *testing.T) {
				virtual(t, func(t *testing.T, n *memNet) {
					s, parts := newIn(t, n, row.connector, row.p, row.d)
					parts.Planner = policies.Default()
					g := startIn(t, n, s.cfg, parts)
					if row.connector != connector.NameNone {
						g.warmed()
					}
					s.setFaults(row.faults)
					const requests = 300
					var mu sync.Mutex
					failed := map[string]int{}
					var wg sync.WaitGroup
					for range requests {
						wg.Go(func() {
							if r := g.post(pathCompletions, plainBody); r.Status != 200 {
								mu.Lock()
								failed[fmt.Sprint(r.Status, " ", r.Header.Get("X-Pdrouter-Reason"))]++
								mu.Unlock()
							}
						})
						time.Sleep(time.Second / time.Duration(perSecond))
					}
					wg.Wait()
					s.setFaults(nil)
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
			virtual(t, func(t *testing.T, n *memNet) {
				s, parts := newIn(t, n, connector.NameNone, 0, 3)
				parts.Planner = policies.Default()
				g := startIn(t, n, s.cfg, parts)
				faults := map[string][]fault{}
				for _, d := range s.d {
					faults[d.name] = []fault{{Do: doBusy, N: row.after}}
				}
				s.setFaults(faults)
				const users = 600
				var mu sync.Mutex
				reasons, bare := map[string]int{}, 0
				var wg sync.WaitGroup
				for range users {
					wg.Go(func() {
						for try := range 3 {
							r := g.post(pathCompletions, plainBody, "X-Stainless-Retry-Count", fmt.Sprint(try))
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
				asked := s.c.count("", "")
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
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NameNone, 0, 1)
		s.cfg.Limits.RetryFloor = new(1)
		s.setFaults(map[string][]fault{"decode-0": {{Do: doBusy, N: 2}}})
		g := startIn(t, n, s.cfg, parts)
		begun := time.Now()
		r := g.post(pathCompletions, plainBody)
		if r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "retry_budget" || r.Header.Get("X-Should-Retry") != "false" ||
			r.Header.Get("Retry-After") != "2" || r.Header.Get("Retry-After-Ms") == "" {
			t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
		if asked, took := s.c.count("", ""), time.Since(begun); asked != 2 || took < 2*time.Second || took > 3*time.Second {
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
