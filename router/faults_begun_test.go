package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
)

// TestFault54StockDecodeHasNotBegun has prefill die while decode, whose places are taken, has yet to begin with the request. It may be
// told only of what it has begun with, so its leg is left open until it surely has; if that takes too long, or nothing can show it, what
// it may hold is counted, and it is never told.
func TestFault54StockDecodeHasNotBegun(t *testing.T) {
	const forms = `{"model":"tiny","prompt":"one two three four","max_tokens":3,"response_format":{"type":"json_object"}}`
	for _, row := range []struct {
		name string
		body string
		full time.Duration // decode begins with nothing for so long
		told int
		why  string
	}{
		{"it has begun", routertest.PlainBody, 0, 1, ""},
		{"it begins later", routertest.PlainBody, time.Second, 1, ""},
		{"it begins after the gateway's own request is there", routertest.PlainBody, reclaim.BarrierAfter + time.Second, 1, ""},
		{"it is full", routertest.PlainBody, reclaim.BeginsWithin + 4*time.Second, 0, reclaim.CauseUnbegun.String()},
		{"it compiles a form first", forms, time.Second, 0, reclaim.CauseUnbegun.String()},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, g, f := routertest.Reclaiming(t, connector.NamePush, func(c *config.Config) { c.Timeouts.Cleanup = time.Minute })
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoResetLate, N: 100}}})
			s.Decode[0].PauseFor(row.full)
			before := s.Cluster.Count("", "")
			got := make(chan routertest.Reply, 1)
			go func() { got <- g.Post(routertest.PathCompletions, row.body) }()
			routertest.Eventually(t, "both legs are under way", func() bool { return s.Cluster.Count("", "") == before+2 && s.Decode[0].UnderWay() == 1 })
			f.Died("prefill-0")
			_ = s.Prefill[0].Server.Listener.Close()
			s.Prefill[0].Server.CloseClientConnections()
			if r := <-got; r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if row.told > 0 {
				routertest.Eventually(t, "decode's blocks are free", func() bool { return g.Freed("prefill_lost", "notify_decode") == 1 })
			} else {
				routertest.Eventually(t, "they are counted", func() bool { return g.Blocks("decode-0")[row.why] > 0 })
			}
			g.WaitIdle()
			if n := f.Count("decode"); n != row.told {
				t.Errorf("decode was told %d times; want %d", n, row.told)
			}
			routertest.Eventually(t, "no leg is open at decode", func() bool { return s.Decode[0].UnderWay() == 0 })
		})
	}
}

func TestBegunInOrder(t *testing.T) {
	for body, want := range map[string]bool{
		`{"model":"m","prompt":"a"}`: true,
		`{"prompt":"a"}`:             true,
		`{"model":"m","prompt":"a","response_format":null,"tool_choice":"auto"}`: true,
		`{"model":"m","prompt":"a","tool_choice":"none"}`:                        true,
		`{"model":"adapter","prompt":"a"}`:                                       false,
		`{"model":"m","prompt":"a","priority":-1}`:                               false,
		`{"model":"m","prompt":"a","response_format":{"type":"text"}}`:           false,
		`{"model":"m","prompt":"a","structured_outputs":{"regex":"a"}}`:          false,
		`{"model":"m","prompt":"a","guided_choice":["a"]}`:                       false,
		`{"model":"m","prompt":"a","tool_choice":"required"}`:                    false,
		`{"model":"m","prompt":"a","tool_choice":{"type":"function"}}`:           false,
		`{"model":"m","prompt":"a","guided_json":{},"response_format":null}`:     false,
	} {
		b, err := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := b.BegunInOrder("m"); got != want {
			t.Errorf("%s: begun in order %v; want %v", body, got, want)
		}
	}
}
