package fleet

import (
	"sync/atomic"
	"time"

	"pdrouter/policies/forecast"
)

// Others is what other gateways have at an engine, all of them together.
type Others struct {
	InFlight int // legs
	Most     int // legs at once lately; of several gateways, each one's together
	Backlog  int // prompt tokens that the engine has yet to compute
	forecast.Others
}

// others is Others as choices read it; what is forecast stands with the engine's forecast.
type others struct{ inFlight, backlog atomic.Int64 }

// Own is what this gateway has at the engine, as other gateways are told. Most is since the call before the last one, as they may miss one. Package peers
// calls it.
func (e *Engine) Own(now time.Time) Others {
	return Others{InFlight: int(e.InFlight.Load()), Most: e.mostLegs(), Backlog: int(e.Backlog.Load()), Others: e.forecast.Own(Seconds(now))}
}

// SetOthers notes what other gateways have at the engine; it holds until the next call. Package peers calls it.
func (e *Engine) SetOthers(o Others) {
	e.others.inFlight.Store(int64(o.InFlight))
	e.others.backlog.Store(int64(o.Backlog))
	e.forecast.SetOthers(o.Others)
	e.setElsewhere(max(o.InFlight, o.Most))
}

// Elsewhere is how many legs other gateways have at the engine.
func (e *Engine) Elsewhere() int { return int(e.others.inFlight.Load()) }

// Requests is how many requests the engine has, those of other gateways and unrouted ones too.
func (e *Engine) Requests(now time.Time) int {
	unrouted, _ := e.unroutedAt(now)
	return int(e.InFlight.Load()) + e.Elsewhere() + unrouted
}

// backlog is how many tokens of prompts it has yet to compute, likewise.
func (e *Engine) backlog(now time.Time) int {
	_, unrouted := e.unroutedAt(now)
	return int(e.Backlog.Load()+e.others.backlog.Load()) + unrouted
}
