package fleet

import (
	"slices"
	"strings"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/fleet/health"
)

// PanicMode is a role of a model in panic mode: too many of its engines are ejected, so all are used.
type PanicMode struct {
	Model string `json:"model"`
	Role  string `json:"role"`
}

// PairOut is a pair that gets no requests as transfers between its engines failed, and how often that was so. In the body of
// /ready those that are out now.
type PairOut struct {
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	State   string `json:"state"` // closed, open or half_open
	Opened  uint64 `json:"opened"`
}

// Unchecked is the state of an engine that has not answered yet.
const Unchecked = "unchecked"

// State returns the engine's state (up, slow_start, half_open, open, slow, overloaded, draining, down or unchecked), why it is not up, and
// the share of its requests that it may get.
func (e *Engine) State(now time.Time, slowStart time.Duration) (state, why string, share float64) {
	s := e.Health.Standing(now, slowStart)
	switch {
	case e.Draining.Load(): // before down: a drained engine may have been switched off
		return "draining", "the configuration, an administrator or discovery drains it", 0
	case e.Down.Load():
		return "down", "it cannot be reached, or says that it is not healthy", 0
	case s.Circuit == health.HalfOpen:
		return "half_open", "its next request decides", s.Share
	case s.Out == health.Answers:
		return "open", "requests failed in a row", 0
	case s.Out == health.Streams:
		return "open", "streams broke or stood still in a row", 0
	case s.Out == health.Slow:
		return "slow", "it is much slower than others of its role", 0
	case s.Out == health.Overloaded:
		return "overloaded", "it has refused requests as it is overloaded", 0
	case !e.proven.Load():
		return Unchecked, "it has not answered yet", s.Share
	case s.Share < 1:
		return "slow_start", "it is new, or back", s.Share
	}
	return "up", "", 1
}

// Ejected lists where engines are used though they are out, and the pairs that are, or have been, out.
func (f *Fleet) Ejected(now time.Time) (modes []PanicMode, pairs []PairOut) {
	for name, m := range f.Models {
		for i := range roleCount {
			if m.panicMode[i].Load() {
				modes = append(modes, PanicMode{Model: name, Role: i.String()})
			}
		}
	}
	slices.SortFunc(modes, func(a, b PanicMode) int { return strings.Compare(a.Model+" "+a.Role, b.Model+" "+b.Role) })
	for _, c := range f.Pairs {
		if n := c.Opened(); n > 0 {
			pairs = append(pairs, PairOut{c.Prefill.Name, c.Decode.Name, c.Circuit(now).String(), n})
		}
	}
	return modes, pairs
}

// engineRules are the rules of engines' breakers.
func engineRules(h config.Health) health.BreakerRules {
	return health.BreakerRules{Failures: h.Failures, Open: h.BaseEjectionTime, Longest: h.MaxEjectionTime}
}

// outlierRules are those of the comparison.
func outlierRules(o config.Outliers) health.OutlierRules {
	return health.OutlierRules{Times: o.LatencyFactor, After: o.After, Ejected: o.Ejected, Percent: *o.Percent}
}

// PairRules are the rules of pairs' breakers.
func PairRules(h config.Health) health.BreakerRules {
	return health.BreakerRules{Failures: h.PairFailures, Open: h.BaseEjectionTime, Longest: h.MaxEjectionTime}
}
