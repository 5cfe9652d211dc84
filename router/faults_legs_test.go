package router_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestFault47to62Legs breaks one leg before the gate. The client sees the whole answer or a true error; no engine is
// left holding blocks.
func TestFault47to62Legs(t *testing.T) {
	type want struct {
		status   int
		reason   string // of an error
		attempts int
		retry    bool // the error may be retried by the client
	}
	ok := func(attempts int) want { return want{status: 200, attempts: attempts} }
	for _, row := range []struct {
		name      string
		connector string
		prefill   int
		decode    int
		faults    map[string][]routertest.Fault
		attempts  int
		streamed  bool // only: what is wrong shows as no first token
		want      want
		transfer  time.Duration
		leaked    bool // the fake, like the engine it stands for, cannot be freed
	}{
		{name: "47 push, P refuses", connector: connector.NamePush, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoRefuse}}}},
		{name: "47 push, P resets", connector: connector.NamePush, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoReset}, {Leg: "prefill", Nth: 2, Do: routertest.DoReset}}}},
		{name: "47 push, P fails", connector: connector.NamePush, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoError}}}},
		{name: "47 pull, P refuses", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoRefuse}}}},
		{name: "47 pull, P resets", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoReset}}}},
		{name: "47 pull, the only P refuses: decode alone", connector: connector.NamePull, prefill: 1, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoRefuse}}}},
		{name: "47 push, nobody listens at P", connector: connector.NamePush, prefill: 2, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoDie}}}},
		{name: "47 pull, nobody listens at P", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoDie}}}},
		{name: "48 push, P rejects while D waits", connector: connector.NamePush, prefill: 2, decode: 1, want: want{status: 400, attempts: 1}, leaked: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoReject}}}},
		{name: "48 none, D rejects", connector: connector.NameNone, decode: 2, want: want{status: 400, attempts: 1},
			faults: map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReject}}}},
		{name: "49 pull, the only P gives no params: decode alone", connector: connector.NamePull, prefill: 1, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoBare}}}},
		{name: "50 push, P hangs", connector: connector.NamePush, prefill: 2, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoHang}}}},
		{name: "52 push, D fails", connector: connector.NamePush, prefill: 1, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoError}}}},
		{name: "52 pull, D always fails", connector: connector.NamePull, prefill: 1, decode: 1, attempts: 2, leaked: true,
			want:   want{status: 502, reason: "decode_failed", attempts: 2, retry: true},
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoError}}}},
		{name: "54 push, a long prefill is no fault", connector: connector.NamePush, prefill: 1, decode: 1, want: ok(1), transfer: 100 * time.Millisecond,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 600}}}},
		{name: "54 pull, a long prefill is no fault", connector: connector.NamePull, prefill: 1, decode: 1, want: ok(1), transfer: 100 * time.Millisecond,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 600}}}},
		{name: "60 pull, garbage from D", connector: connector.NamePull, prefill: 1, decode: 1, attempts: 1, leaked: true,
			want:   want{status: 502, reason: "bad_upstream", attempts: 1, retry: true},
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoGarbage}}}},
		{name: "60 none, a page", connector: connector.NameNone, decode: 1, attempts: 1,
			want:   want{status: 502, reason: "bad_upstream", attempts: 1, retry: true},
			faults: map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoPage}}}},
		{name: "60 none, a stream of nothing", connector: connector.NameNone, decode: 1, attempts: 1, streamed: true,
			want:   want{status: 502, attempts: 1, retry: true},
			faults: map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoNoDone, N: 0}}}},
		{name: "48 push, P rejects", connector: connector.NamePush, prefill: 2, decode: 1, want: want{status: 400, attempts: 1},
			faults: map[string][]routertest.Fault{
				"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoReject}}, "decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoReject}}}},
		{name: "48 pull, P rejects", connector: connector.NamePull, prefill: 2, decode: 1, want: want{status: 400, attempts: 1},
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoReject}}}},
		{name: "49 pull, no params", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoBare}}}},
		{name: "49 pull, part of the params", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoPart}}}},
		{name: "49 pull, garbage", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoGarbage}}}},
		{name: "50 pull, P hangs", connector: connector.NamePull, prefill: 2, decode: 1, want: ok(2),
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoHang}}}},
		{name: "50 pull, every P hangs", connector: connector.NamePull, prefill: 1, decode: 1, attempts: 1,
			want:   want{status: 504, reason: "prefill_timeout", attempts: 1, retry: true},
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoHang}}}},
		{name: "51 pull, D refuses", connector: connector.NamePull, prefill: 1, decode: 2, want: ok(2),
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoRefuse}}}},
		{name: "51 pull, D resets", connector: connector.NamePull, prefill: 1, decode: 2, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoReset}}}},
		{name: "51 pull, D dies", connector: connector.NamePull, prefill: 1, decode: 2, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoDie}}}},
		{name: "51 push, D dies", connector: connector.NamePush, prefill: 1, decode: 2, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoDie}}}},
		{name: "51 push, D refuses", connector: connector.NamePush, prefill: 1, decode: 2, want: ok(2),
			faults: map[string][]routertest.Fault{
				"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 200}},
				"decode-0":  {{Leg: "decode", Nth: 1, Do: routertest.DoRefuse}}}},
		{name: "51 push, D refuses behind P's answer", connector: connector.NamePush, prefill: 1, decode: 2, want: ok(2),
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoRefuseLate, N: 200}}}},
		{name: "51 push, D resets", connector: connector.NamePush, prefill: 1, decode: 2, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoReset}, {Leg: "decode", Nth: 2, Do: routertest.DoReset}}}},
		{name: "52 pull, D fails", connector: connector.NamePull, prefill: 1, decode: 1, want: ok(2), leaked: true,
			faults: map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: routertest.DoError}}}},
		{name: "52 none, D fails within the budget", connector: connector.NameNone, decode: 1, attempts: 2,
			want:   want{status: 502, reason: "decode_failed", attempts: 2, retry: true},
			faults: map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}}},
		{name: "54 push, P writes nothing", connector: connector.NamePush, prefill: 1, decode: 1, want: ok(2), leaked: true, streamed: true,
			faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoNeverKV}}}},
		{name: "60 none, garbage", connector: connector.NameNone, decode: 1, attempts: 1,
			want:   want{status: 502, reason: "bad_upstream", attempts: 1, retry: true},
			faults: map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoGarbage}}}},
		{name: "62 none, D resets", connector: connector.NameNone, decode: 2, want: ok(2),
			faults: map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReset}}}},
	} {
		for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
			name := row.name
			if body == routertest.StreamBody {
				name += ", streamed"
			} else if row.streamed {
				continue
			}
			t.Run(name, func(t *testing.T) {
				s := routertest.NewPool(t, row.connector, row.prefill, row.decode, nil)
				s.Config.Limits.Attempts = row.attempts
				s.Config.Timeouts.Prefill = 2 * time.Second
				if s.Config.Timeouts.Transfer = row.transfer; row.transfer == 0 {
					s.Config.Timeouts.Transfer = 2 * time.Second
				}
				if strings.HasPrefix(row.name, "50 push") {
					s.Config.Timeouts.Cleanup = time.Second // what P holds up behind the answer
				}
				g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
				if row.connector != connector.NameNone {
					routertest.Eventually(t, "every pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == row.prefill*row.decode })
				}
				g.WaitIdle()
				s.SetFaults(row.faults)
				before, prefills := s.Cluster.Count("", ""), s.Cluster.Count("", "prefill")
				r := g.Post(routertest.PathCompletions, body)
				if r.Status != row.want.status {
					t.Fatalf("status %d; want %d: %s", r.Status, row.want.status, r.Body)
				}
				if r.Status == 200 {
					if got, whole := routertest.Text(t, r); got != routertest.WholeText || !whole {
						t.Errorf("text %q, whole %v", got, whole)
					}
				} else {
					routertest.ErrorOf(t, r.Body)
					if got := r.Header.Get("X-Pdrouter-Reason"); row.want.reason != "" && got != row.want.reason {
						t.Errorf("reason %q; want %q", got, row.want.reason)
					}
					if got := r.Header.Get("X-Should-Retry") != "false"; got != row.want.retry {
						t.Errorf("the client may retry: %v; want %v", got, row.want.retry)
					}
				}
				if sum := g.Summary(1); int(sum.Attempts) != row.want.attempts {
					t.Errorf("%d attempts; want %d", sum.Attempts, row.want.attempts)
				}
				g.WaitIdle()
				if row.want.status == 400 && r.Body != rejection {
					t.Errorf("the engine said %s, and the client was told %s", rejection, r.Body)
				}
				if n := s.Cluster.Count("", "prefill") - prefills; strings.HasPrefix(row.name, "52 pull") && n < row.want.attempts {
					t.Errorf("%d prefills for %d attempts", n, row.want.attempts)
				}
				routertest.Eventually(t, "every leg has ended", func() bool {
					n := 0
					for _, e := range s.Engines() {
						n += e.UnderWay()
					}
					return n == 0
				})
				if !row.leaked {
					s.CheckNothingHeld(t)
				}
				for _, e := range s.Decode { // what goes wrong with others is not decode's
					if state := g.EngineStats(e.Name).State; row.name[:2] < "51" && state != "up" && state != "unchecked" {
						t.Errorf("%s is %s", e.Name, state)
					}
				}
				checkDispatches(t, s.Cluster.All()[before:])
			})
		}
	}
}

// rejection is what a fake engine says of a request that it rejects.
const rejection = `{"error":{"message":"as told","type":"BadRequestError","param":null,"code":400}}`

// TestFault50ClientsDeadline has every prefill engine hang for longer than the request may take: its deadline counts, not theirs.
func TestFault50ClientsDeadline(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull} {
		routertest.RunVirtual(t, "50 "+connectorName, func(t *testing.T) {
			s := routertest.NewPool(t, connectorName, 2, 1, nil)
			s.Config.Timeouts.Prefill, s.Config.Timeouts.RequestTotal, s.Config.Timeouts.Request = 2*time.Second, 500*time.Millisecond, 500*time.Millisecond
			s.Config.Timeouts.Cleanup = 500 * time.Millisecond
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
			g.WaitWarm()
			hang := []routertest.Fault{{Leg: "prefill", Do: routertest.DoHang}}
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": hang, "prefill-1": hang})
			for i, body := range []string{routertest.PlainBody, routertest.StreamBody} {
				r := g.Post(routertest.PathCompletions, body)
				if routertest.ErrorOf(t, r.Body); r.Status != 504 || r.Header.Get("X-Pdrouter-Reason") != "deadline" {
					t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
				}
				if sum := g.Summary(i + 1); sum.Outcome != dispatch.FailedBefore || sum.Attempts != 1 {
					t.Errorf("summary %+v", sum)
				}
			}
			g.WaitIdle()
			routertest.Eventually(t, "prefill sees the end", func() bool { return s.Prefill[0].UnderWay()+s.Prefill[1].UnderWay() == 0 })
		})
	}
}

// TestFault64Refused: where the policy wants prefill and there is none, clients are told when to come back.
func TestFault64Refused(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull} {
		t.Run("64 "+connectorName, func(t *testing.T) {
			s := routertest.NewPool(t, connectorName, 1, 1, nil)
			s.Prefill[0].Server.Close()
			g := routertest.Start(t, s.Config, router.Parts{Planner: refusing(t)})
			routertest.Eventually(t, "prefill is down", func() bool { return !g.Router.Stats().Ready })
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if routertest.ErrorOf(t, r.Body); r.Status != 503 || r.Header.Get("Retry-After") == "" || r.Header.Get("X-Pdrouter-Reason") == "" || s.Cluster.Count("decode-0", "") != 0 {
				t.Errorf("status %d, header %v, decode asked %d times: %s", r.Status, r.Header, s.Cluster.Count("decode-0", ""), r.Body)
			}
		})
	}
}

// checkDispatches checks that no decode leg went out without whole params, that ids are shared by no two dispatches, and
// that what prefill's answer refers to is handed to a second decode engine only if the first has refused it.
func checkDispatches(t *testing.T, all []*routertest.Request) {
	t.Helper()
	n, refs := map[string]int{}, map[string][]*routertest.Request{}
	for _, q := range all {
		if q.Leg == "decode" && (q.KV["remote_host"] == nil || q.KV["remote_port"] == nil) {
			t.Errorf("decode was sent %v", q.KV)
		}
		if ref, ok := q.KV["remote_request_id"].(string); ok && q.KV["remote_block_ids"] != nil {
			if first := refs[ref]; len(first) > 0 && first[len(first)-1].Fault != routertest.DoRefuse {
				t.Errorf("what %s refers to went to %s, and then to %s", ref, first[len(first)-1].Engine, q.Engine)
			}
			refs[ref] = append(refs[ref], q)
		}
		n[q.Engine+q.Leg+q.ID]++
		// A prefill leg may be asked again under the same id, to free decode's blocks. So is, once, whatever met a kept
		// connection that broke before a byte came back.
		again := 1
		if q.Fault == routertest.DoReset || q.Fault == routertest.DoDie {
			again = 2
		}
		if times := n[q.Engine+q.Leg+q.ID]; times > again && q.Leg != "prefill" {
			t.Errorf("%s: %s %d times under one id", q.Engine, q.Leg, times)
		}
	}
}

// TestFault44Restarted has prefill come back under another engine id.
func TestFault44Restarted(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	s.Prefill[0].Mu.Lock()
	s.Prefill[0].ID = "another start"
	s.Prefill[0].Mu.Unlock()
	for range 3 {
		if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.StreamBody)); got != routertest.WholeText || !whole {
			t.Fatalf("text %q, whole %v", got, whole)
		}
	}
	routertest.Eventually(t, "the new endpoint is known", func() bool { return g.Router.Debug().Engine("prefill-0").HasEndpoint() })
	g.WaitIdle()
	last := s.Cluster.All()[s.Cluster.Count("", "")-1]
	for _, q := range s.Cluster.All() {
		if q.Leg == "decode" {
			last = q
		}
	}
	if last.KV["remote_engine_id"] != "another start" && last.Leg == "decode" && s.Cluster.Count("", "alone") == 0 {
		t.Errorf("decode was sent %v", last.KV)
	}
}

// TestFault64AllDown has no engine listen at all.
func TestFault64AllDown(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "http://" + ln.Addr().String()
	_ = ln.Close()
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		t.Run(connectorName, func(t *testing.T) {
			m := config.Model{Name: "tiny", Connector: connectorName, Engines: []config.Engine{{Name: "a", URL: dead}}}
			if connectorName != connector.NameNone {
				m.Engines = nil
				m.Prefill, m.Decode = []config.Engine{{Name: "p", URL: dead}}, []config.Engine{{Name: "d", URL: dead}}
			}
			g := routertest.Start(t, config.Config{Models: []config.Model{m}}, router.Parts{})
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if e := routertest.ErrorOf(t, r.Body); r.Status != 503 || e.Type != "ServiceUnavailableError" || r.Header.Get("Retry-After-Ms") == "" {
				t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
			}
			routertest.Eventually(t, "the router is not ready", func() bool { return !g.Router.Stats().Ready })
			if strings.Contains(r.Body, strings.TrimPrefix(dead, "http://")) {
				t.Errorf("an engine's address reached the client: %s", r.Body)
			}
		})
	}
}

// TestFault64PrefillDown has decode serve alone while no prefill engine listens.
func TestFault64PrefillDown(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull} {
		t.Run(connectorName, func(t *testing.T) {
			s := routertest.NewPool(t, connectorName, 1, 1, nil)
			s.Prefill[0].Server.Close()
			g := routertest.Start(t, s.Config, router.Parts{})
			for range 3 {
				r := g.Post(routertest.PathCompletions, routertest.PlainBody)
				if got, whole := routertest.Text(t, r); got != routertest.WholeText || !whole {
					t.Errorf("text %q, whole %v", got, whole)
				}
				if why := r.Header.Get("X-Pdrouter-Reason"); why == "" || why == "split" || r.Header.Get("X-Pdrouter-Prefill") != "" {
					t.Errorf("it is not told that decode served alone: %v", r.Header)
				}
			}
			s.CheckNothingHeld(t)
		})
	}
}
