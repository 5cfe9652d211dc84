package router_test

import (
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestFault21OneFailsOthersHang has one of three choices fail while nothing comes for the others: the client has its error while
// they hang, and they are ended in their connector's way.
func TestFault21OneFailsOthersHang(t *testing.T) {
	for _, connectorName := range fanConnectors {
		for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
			routertest.RunVirtual(t, connectorName+map[bool]string{true: " streamed"}[body == routertest.StreamBody], func(t *testing.T) {
				s, g := newFanPool(t, connectorName, 1, 1, func(c *config.Config) {
					c.Timeouts.Request, c.Timeouts.RequestTotal, c.Timeouts.Prefill = time.Hour, time.Hour, time.Hour
					if connectorName == connector.NamePush { // what decode waits for must be given its time
						c.Timeouts.Prefill, c.Timeouts.Cleanup = 3*time.Second, 500*time.Millisecond
					}
				})
				s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 3, Do: routertest.DoReject}, {Leg: "prefill", Do: routertest.DoHang}}})
				r := g.Post(routertest.PathCompletions, strings.Replace(body, `"prompt"`, `"n":3,"prompt"`, 1))
				if routertest.ErrorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				if connectorName == connector.NamePush && s.Prefill[0].UnderWay() == 0 {
					t.Error("the client has waited for the others")
				}
				if sum := g.Summary(1); sum.Outcome != dispatch.FailedBefore || int(sum.Status) != r.Status {
					t.Errorf("summary %+v", sum)
				}
				g.WaitIdle()
				routertest.Eventually(t, "the engines see the end", func() bool { return s.Prefill[0].UnderWay()+s.Decode[0].UnderWay() == 0 })
			})
		}
	}
}
