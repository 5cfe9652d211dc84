package fleet

import (
	"time"

	"pdrouter/router/fleet/health"
)

// ObserveLatency notes how long an engine took, and now and then compares all of its role.
func (f *Fleet) ObserveLatency(m *Model, role Role, e *Engine, took time.Duration, tokens int, now time.Time) {
	e.Health.ObserveLatency(took, tokens, now)
	was := m.comparedAt[role].Load()
	if at := now.UnixNano(); at-was < int64(time.Second) || !m.comparedAt[role].CompareAndSwap(was, at) {
		return
	}
	engines := m.Decode
	if role == Prefill {
		engines = m.Prefill
	}
	f.ejectSlowest(engines, now)
}

// ejectSlowest compares the engines of a role, and takes one out that is too slow.
func (f *Fleet) ejectSlowest(engines []*Engine, now time.Time) {
	which, states := make([]*Engine, 0, len(engines)), make([]*health.State, 0, len(engines))
	for _, e := range engines {
		if e.Usable() {
			which, states = append(which, e), append(states, &e.Health)
		}
	}
	if i, perToken := health.EjectSlowest(states, now, outlierRules(f.health.Outliers)); i >= 0 {
		f.log.Warn("engine is out", "engine", which[i].Name, "reason", health.Slow.String(), "pause", f.health.Outliers.Ejected, "seconds_per_token", perToken)
	}
}
