package router

import (
	"strings"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestFault21OneFailsOthersHang has one of three choices fail while nothing comes for the others: the client has its error while
// they hang, and they are ended in their connector's way.
func TestFault21OneFailsOthersHang(t *testing.T) {
	for _, connectorName := range fanConnectors {
		for _, body := range []string{plainBody, streamBody} {
			unhurried(t, connectorName+map[bool]string{true: " streamed"}[body == streamBody], func(t *testing.T) {
				s, g := newFanPool(t, connectorName, 1, 1, func(c *config.Config) {
					c.Timeouts.Request, c.Timeouts.Answer, c.Timeouts.Prefill = time.Hour, time.Hour, time.Hour
					if connectorName == connector.NamePush { // what decode waits for must be given its time
						c.Timeouts.Prefill, c.Timeouts.Ending = 3*time.Second, 500*time.Millisecond
					}
				})
				s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 3, Do: doReject}, {Leg: "prefill", Do: doHang}}})
				r := g.post(pathCompletions, strings.Replace(body, `"prompt"`, `"n":3,"prompt"`, 1))
				if errorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
				if connectorName == connector.NamePush && s.p[0].underWay() == 0 {
					t.Error("the client has waited for the others")
				}
				if sum := g.last(1); sum.Outcome != report.FailedBefore || sum.Status != r.Status {
					t.Errorf("summary %+v", sum)
				}
				g.settled()
				eventually(t, "the engines see the end", func() bool { return s.p[0].underWay()+s.d[0].underWay() == 0 })
			})
		}
	}
}
