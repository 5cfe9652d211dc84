package exchange_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/internal/yamlfile"
	"pdrouter/policies"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/report"
)

// unwanted is a planner that no request may ask.
type unwanted struct{ asked *atomic.Int64 }

func (u unwanted) Choose(policies.Request, policies.Fleet, policies.Draw) policies.Choice {
	u.asked.Add(1)
	return policies.Choice{Prefill: -1, Decode: -1}
}

// TestRequestKeepsItsSnapshot reloads the configuration between every two steps of a request, over every connector, streamed or not, with
// an engine that fails at first: the request goes by the configuration that it was admitted with, to its end. The other configuration has
// the same engines; with its limits, times, policy or reports the request would fail, or be told elsewhere.
func TestRequestKeepsItsSnapshot(t *testing.T) {
	for _, name := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %v", name, stream), func(t *testing.T) {
				s, parts := routertest.NewPoolIn(t, nil, name, 2, 2)
				var elsewhere, asked atomic.Int64
				g := routertest.Start(t, s.Config, parts)
				if name != connector.NameNone && name != connector.NameSGLang {
					g.WaitWarm()
				}
				other, with := s.Config, g.Parts
				other.Limits.Event, other.Limits.Attempts = 1, 1
				for _, limit := range []*time.Duration{
					&other.Timeouts.Request, &other.Timeouts.RequestTotal, &other.Timeouts.Prefill, &other.Timeouts.Transfer, &other.Timeouts.StreamIdle,
					&other.Timeouts.Write, &other.Timeouts.Pair, &other.Timeouts.Queue,
				} {
					*limit = time.Microsecond
				}
				with.Planner, with.Observe = unwanted{&asked}, func(report.Summary) { elsewhere.Add(1) }
				text := routertest.PlainBody
				if stream {
					text = routertest.StreamBody
				}
				s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}})
				steps := 0
				reload := func() {
					steps++
					next := other
					next.Limits.Answer = yamlfile.Size(1 + steps%2)
					if err := g.Router.Apply(next, with); err != nil {
						t.Fatal(err)
					}
				}
				x := exchange.NewDebug(g.Router.Debug().Exchanges()).Own(text)
				reload()
				x.Step(dispatch.Event{Kind: dispatch.EvStart})
				var body strings.Builder
				for !x.Finished() {
					reload()
					body.Write(x.Advance())
				}
				if x.Streams() {
					reload()
					if err := x.CloseWithError(nil); err != nil {
						t.Fatal(err)
					}
				} else {
					body.Write(x.Answer())
				}
				x.Release()
				if sum := x.Summary(); sum.Outcome != dispatch.Completed || sum.Attempts < 2 || !strings.Contains(body.String(), "tok0") {
					t.Errorf("after %d reloads: summary %+v, answer %q", steps, sum, body.String())
				}
				if asked.Load() != 0 || elsewhere.Load() != 0 || g.Summary(1).Outcome != dispatch.Completed {
					t.Errorf("the other planner was asked %d times, and %d requests were reported elsewhere", asked.Load(), elsewhere.Load())
				}
			})
		}
	}
}
