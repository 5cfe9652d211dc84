package exchange_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router/exchange"
)

// TestPlaneEndsWithoutALeg has prefill answer while its request ends: what it holds is given back by the cancel that both
// engines are told, and decode is asked for nothing.
func TestPlaneEndsWithoutALeg(t *testing.T) {
	s, _, parts := routertest.NewPlane(t, 1, 1)
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	asked := s.Cluster.Count("", "")
	exchange.NewDebug(g.Router.Debug().Exchanges()).EndBehindPrefill(t.Context(), routertest.PlainBody)
	if got := s.Cluster.Count("", ""); got != asked {
		t.Errorf("engines were asked %d more times; want none", got-asked)
	}
}
