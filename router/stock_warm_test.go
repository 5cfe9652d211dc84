package router_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestWarmUpGivesBack has decode fail on the second leg of a handshake: what prefill holds is taken after all where that
// is safe, and counted where it is not.
func TestWarmUpGivesBack(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull} {
		for _, row := range []struct {
			do     string
			leaked uint64
		}{{routertest.DoRefuse, 0}, {routertest.DoError, 1}, {routertest.DoReset, 1}} {
			t.Run(connectorName+" "+row.do, func(t *testing.T) {
				s := routertest.NewPool(t, connectorName, 1, 1, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 1, Do: row.do}}})
				g := routertest.Start(t, s.Config, router.Parts{})
				g.WaitWarm()
				g.WaitIdle()
				prefill, decode := s.Cluster.Held()
				if n := g.Router.Stats().Leaked; n != row.leaked || uint64(prefill) != row.leaked || decode != 0 {
					t.Errorf("%d counted as leaked, prefill holds %d and decode %d; want %d, %d and 0", n, prefill, decode, row.leaked, row.leaked)
				}
			})
		}
	}
}
