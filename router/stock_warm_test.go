package router

import (
	"testing"

	"pdrouter/router/connector"
)

// TestWarmUpGivesBack has decode fail on the second leg of a handshake: what prefill holds is taken after all where that
// is safe, and counted where it is not.
func TestWarmUpGivesBack(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull} {
		for _, row := range []struct {
			do       string
			stranded uint64
		}{{doRefuse, 0}, {doError, 1}, {doReset, 1}} {
			t.Run(connectorName+" "+row.do, func(t *testing.T) {
				s := newPool(t, connectorName, 1, 1, map[string][]fault{"decode-0": {{Leg: "decode", Nth: 1, Do: row.do}}})
				if row.do == doReset && connectorName == connector.NamePush {
					t.Skip("it is sent a second time, and decode takes it")
				}
				g := start(t, s.cfg, Parts{})
				g.warmed()
				g.settled()
				prefill, decode := s.c.held()
				if n := g.r.Stats().Stranded; n != row.stranded || uint64(prefill) != row.stranded || decode != 0 {
					t.Errorf("%d counted as stranded, prefill holds %d and decode %d; want %d, %d and 0", n, prefill, decode, row.stranded, row.stranded)
				}
			})
		}
	}
}
