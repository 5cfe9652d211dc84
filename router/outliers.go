package router

import (
	"time"

	"pdrouter/router/fleet/health"
)

// timed notes how long an engine took, and now and then compares all of its role.
func (f *fleet) timed(m *model, role role, e *engine, took time.Duration, tokens int, now time.Time) {
	e.vitals.ObserveLatency(took, tokens, now)
	was := m.judged[role].Load()
	if at := now.UnixNano(); at-was < int64(time.Second) || !m.judged[role].CompareAndSwap(was, at) {
		return
	}
	engines := m.decode
	if role == prefillRole {
		engines = m.prefill
	}
	f.judge(engines, now)
}

// judge compares the engines of a role, and takes one out that is too slow.
func (f *fleet) judge(engines []*engine, now time.Time) {
	which, states := make([]*engine, 0, len(engines)), make([]*health.State, 0, len(engines))
	for _, e := range engines {
		if e.usable() {
			which, states = append(which, e), append(states, &e.vitals)
		}
	}
	if i, perToken := health.EjectSlowest(states, now, outlierRules(f.health.Outliers)); i >= 0 {
		f.log.Warn("engine is out", "engine", which[i].name, "reason", health.Slow.String(), "pause", f.health.Outliers.Ejected, "seconds_per_token", perToken)
	}
}
