package agent

import (
	"fmt"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// TestTransferOverNIXL hands requests over between whole agents, whose owners sleep and are woken by the doorbell,
// and then leaves them alone: all of them together use under 1 % of a core each.
func TestTransferOverNIXL(t *testing.T) {
	for _, c := range []struct{ ptp, dtp int }{{1, 1}, {1, 4}, {2, 4}, {4, 2}} {
		t.Run(fmt.Sprintf("P %d D %d", c.ptp, c.dtp), func(t *testing.T) {
			newTransport(t, "nixl") // skips without it
			p, d, _ := pairOf(t, func() transport.Transport { return newTransport(t, "nixl") }, side(c.ptp), side(c.dtp), kvplane.Times{})
			transferAll(t, p, d)
			if c.ptp != 2 {
				return
			}
			time.Sleep(200 * time.Millisecond) // whoever has just been told something still polls
			before := transporttest.ProcessorTime(t)
			time.Sleep(3 * time.Second)
			percent := 100 * (transporttest.ProcessorTime(t) - before).Seconds() / 3 / float64(c.ptp+c.dtp)
			t.Logf("%.2f %% of a core for each idle agent", percent)
			if percent > 1 {
				t.Errorf("an idle agent uses %.2f %% of a core; want under 1 %%", percent)
			}
		})
	}
}
