package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router/connector"
)

// TestLateHealthAnswer has an engine not answer its health checks in time. It goes down only if no request on it makes progress
// meanwhile, and if another engine of its role is left.
func TestLateHealthAnswer(t *testing.T) {
	for _, row := range []struct {
		name    string
		engines int
		stream  bool // a request on it makes progress
		down    bool
	}{
		{"one of two", 2, false, true},
		{"one of two, a stream on it goes on", 2, true, false},
		{"the only one", 1, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, row.engines)
				s.Config.Timeouts.Health = 2 * time.Second
				g := routertest.StartIn(t, n, s.Config, parts)
				time.Sleep(time.Second)
				replies := make(chan routertest.Reply, 1)
				if row.stream {
					s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Tokens = 120 })
					s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoLateToken, N: 500}}}) // a token each 500 ms
					go func() { replies <- g.Post(routertest.PathCompletions, routertest.StreamBody) }()
				}
				s.Decode[0].SetHealth(routertest.NeverSays)
				time.Sleep(30 * time.Second)
				if got := g.EngineStats("decode-0").State; (got == "down") != row.down {
					t.Errorf("the engine is %s", got)
				}
				g.MustServe(1, routertest.PlainBody)
				s.Decode[0].SetHealth(nil)
				if row.stream {
					if r := <-replies; r.Status != 200 || r.Err != nil {
						t.Errorf("status %d, %v", r.Status, r.Err)
					}
				}
				time.Sleep(10 * time.Second)
				if got := g.EngineStats("decode-0").State; got == "down" {
					t.Errorf("the engine is %s", got)
				}
			})
		})
	}
}

// TestLastEngineIsNotTakenOutForSlowness has both engines of a role be late with their health answers at the same time: one is left. It
// goes down as soon as the other is back.
func TestLastEngineIsNotTakenOutForSlowness(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 2)
		s.Config.Timeouts.Health = 2 * time.Second
		g := routertest.StartIn(t, n, s.Config, parts)
		time.Sleep(time.Second)
		s.Decode[0].SetHealth(routertest.NeverSays)
		s.Decode[1].SetHealth(routertest.NeverSays)
		down := func() (names []string) {
			for _, e := range g.Router.Stats().Engines {
				if e.State == "down" {
					names = append(names, e.Name)
				}
			}
			return names
		}
		time.Sleep(30 * time.Second)
		first := down()
		if len(first) != 1 {
			t.Fatalf("%v are down; want one", first)
		}
		g.MustServe(1, routertest.PlainBody)
		for _, d := range s.Decode {
			if d.Name == first[0] {
				d.SetHealth(nil)
			}
		}
		time.Sleep(10 * time.Second)
		if now := down(); len(now) != 1 || now[0] == first[0] {
			t.Errorf("%v are down, first %v", now, first)
		}
	})
}

// TestRefusedConnectionIsDownAtOnce has an engine's process end: the first connection that is refused takes the engine out.
func TestRefusedConnectionIsDownAtOnce(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NameNone, 0, 2)
		g := routertest.StartIn(t, n, s.Config, parts)
		time.Sleep(time.Second)
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoDie}}})
		g.MustServe(1, routertest.PlainBody) // the connection is reset, and the port is closed
		g.MustServe(1, routertest.PlainBody) // is refused
		if got := g.EngineStats("decode-0").State; got != "down" {
			t.Errorf("the engine is %s", got)
		}
	})
}

// TestRequestsWaitForAnEngine has no engine that can take a request now. Where one may come back the request waits in the queue and is
// served as soon as it does. It is told at once where every engine refuses connections.
func TestRequestsWaitForAnEngine(t *testing.T) {
	for _, row := range []struct {
		name, connector string
		body            string
	}{
		{"aggregated", connector.NameNone, routertest.PlainBody},
		{"aggregated, streamed", connector.NameNone, routertest.StreamBody},
		{"decode", connector.NamePull, routertest.PlainBody},
	} {
		t.Run(row.name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				p := 0
				if row.connector != connector.NameNone {
					p = 1
				}
				s, parts := routertest.NewPoolIn(t, n, row.connector, p, 1)
				s.Config.Timeouts.Health, s.Config.Timeouts.Queue = 2*time.Second, 20*time.Second
				g := routertest.StartIn(t, n, s.Config, parts)
				if p > 0 {
					g.WaitWarm()
				}
				time.Sleep(time.Second)
				s.Decode[0].SetHealth(routertest.Unhealthy)
				routertest.Eventually(t, "it is down", func() bool { return g.EngineStats("decode-0").State == "down" })
				replies := make(chan routertest.Reply, 1)
				go func() { replies <- g.Post(routertest.PathCompletions, row.body) }()
				routertest.Eventually(t, "the request waits", func() bool { return g.Router.Stats().Queues[0].Waiting == 1 })
				time.Sleep(10 * time.Second)
				s.Decode[0].SetHealth(nil)
				routertest.Eventually(t, "the engine is back", func() bool { return g.EngineStats("decode-0").State != "down" })
				back := time.Now()
				if r := <-replies; r.Status != 200 || r.Err != nil || time.Since(back) > time.Second {
					t.Errorf("status %d, %v, %v behind the engine's return: %s", r.Status, r.Err, time.Since(back), r.Body)
				}

				s.Decode[0].SetHealth(routertest.Unhealthy)
				routertest.Eventually(t, "it is down again", func() bool { return g.EngineStats("decode-0").State == "down" })
				begun := time.Now()
				r := g.Post(routertest.PathCompletions, row.body)
				if took := time.Since(begun); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "queue_timeout" ||
					r.Header.Get("Retry-After") == "" || took < 20*time.Second || took > 20*time.Second+5*time.Millisecond {
					t.Errorf("status %d, header %v behind %v", r.Status, r.Header, took)
				}

				go func() { replies <- g.Post(routertest.PathCompletions, row.body) }()
				routertest.Eventually(t, "the request waits", func() bool { return g.Router.Stats().Queues[0].Waiting == 1 })
				_ = s.Decode[0].Server.Listener.Close()
				s.Decode[0].Server.CloseClientConnections()
				if r := <-replies; r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "no_engine" {
					t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
				}
				begun = time.Now()
				r = g.Post(routertest.PathCompletions, row.body)
				if took := time.Since(begun); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "no_engine" || took > 5*time.Millisecond {
					t.Errorf("where connections are refused: status %d, header %v behind %v", r.Status, r.Header, took)
				}
			})
		})
	}
}

// TestRequestsWaitForPrefill has a policy that insists on prefill, and a prefill engine that is not healthy for a while, or has asked for
// no requests: the request waits for it.
func TestRequestsWaitForPrefill(t *testing.T) {
	for _, overloaded := range []bool{false, true} {
		routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
			s, parts := routertest.NewPoolIn(t, n, connector.NamePull, 1, 1)
			planner := routertest.Policy(t, policies.Choosing{Split: policies.SplitRule{OnNoPrefill: "reject"}})
			parts.Planner = planner
			s.Config.Timeouts.Health = 2 * time.Second
			g := routertest.StartIn(t, n, s.Config, parts)
			g.WaitWarm()
			replies := make(chan routertest.Reply, 2)
			ask := func() { replies <- g.Post(routertest.PathCompletions, routertest.PlainBody) }
			if overloaded {
				s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoBusy, N: 3}}})
				go ask()
				time.Sleep(time.Second)
			} else {
				s.Prefill[0].SetHealth(routertest.Unhealthy)
				routertest.Eventually(t, "it is down", func() bool { return g.EngineStats("prefill-0").State == "down" })
				time.AfterFunc(5*time.Second, func() { s.Prefill[0].SetHealth(nil) })
				go ask()
			}
			begun := time.Now()
			go ask()
			for range 2 {
				if r := <-replies; r.Status != 200 || time.Since(begun) < 2*time.Second-time.Millisecond {
					t.Errorf("overloaded %v: status %d behind %v: %s", overloaded, r.Status, time.Since(begun), r.Body)
				}
			}
			if overloaded && s.Cluster.Count("prefill-0", "prefill") != 1+1+2 { // the handshake, the refusal, both requests
				t.Errorf("prefill was asked %d times", s.Cluster.Count("prefill-0", "prefill"))
			}
			// What has waited is told when the time in the queue is over.
			if !overloaded {
				s.Prefill[0].SetHealth(routertest.Unhealthy)
				routertest.Eventually(t, "it is down", func() bool { return g.EngineStats("prefill-0").State == "down" })
				begun := time.Now()
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "queue_timeout" ||
					time.Since(begun) < 10*time.Second || time.Since(begun) > 10*time.Second+5*time.Millisecond {
					t.Errorf("status %d, header %v behind %v", r.Status, r.Header, time.Since(begun))
				}
			}
		})
	}
}
