package exchange_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
)

// countingCaller counts the ends that it is told of.
type countingCaller struct{ ends int }

func (*countingCaller) Begun() {}

func (c *countingCaller) Ended(*exchange.Exchange) { c.ends++ }

// TestFault68PanicInTheEnd has what tells a client of its request's end panic, where the request has its outcome already: what it has
// of its caller's limits and of the engines is given back, once, as whoever has it served is told of one end.
func TestFault68PanicInTheEnd(t *testing.T) {
	for _, row := range []struct {
		name string
		in   dispatch.State
		kind dispatch.EventKind
	}{
		{"legs are to run on", dispatch.StAwaiting, dispatch.EvDeadline},
		{"before a leg was asked", dispatch.StPlanning, dispatch.EvDeadline},
		{"at a shutdown", dispatch.StAwaiting, dispatch.EvShutdown},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
			g := routertest.Start(t, s.Config, router.Parts{})
			g.WaitWarm()
			told := new(countingCaller)
			e, again := exchange.NewDebug(g.Router.Debug().Exchanges()).PanicInTheEnd(routertest.PlainBody, row.in, row.kind, told)
			if told.ends != 1 || g.Router.Stats().Requests != 0 {
				t.Errorf("its caller was told of %d ends; %d live requests", told.ends, g.Router.Stats().Requests)
			}
			if e == nil || e.Status != 500 {
				t.Errorf("reply %+v", e)
			}
			if sum := g.Summary(1); sum.Outcome != dispatch.FailedBefore || sum.Reason != "panic" || sum.Status != 500 {
				t.Errorf("summary %+v", sum)
			}
			again()
			if told.ends != 1 {
				t.Errorf("its caller was told of %d ends behind another panic", told.ends)
			}
		})
	}
}
