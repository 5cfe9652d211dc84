package router

import (
	"time"

	"pdrouter/router/config"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
)

// sawDone learns how long the engines of a request took. It is called once per request, at its end.
func (x *exchange) sawDone(now time.Time) {
	a, s := x.cur, &x.sum
	if a == nil || s.Attempts == 0 || s.Phases.Plan == 0 {
		return
	}
	tokens := x.b.PromptTokens()
	if s.PromptTokens > 0 {
		tokens = s.PromptTokens
	}
	switch {
	case a.split && a.answered() && s.Phases.Prefill > s.Phases.Pair:
		x.r.timed(x.m, prefillRole, a.prefill.engine, s.Phases.Prefill-s.Phases.Pair, tokens-s.CachedTokens, now)
		if x.b.Stream && s.Phases.FirstToken > s.Phases.Prefill {
			x.r.timed(x.m, decodeRole, a.decode.engine, s.Phases.FirstToken-s.Phases.Prefill, tokens, now)
		}
	case x.m.conn.Traits().Mode == dispatch.Alone && x.b.Stream && s.Phases.FirstToken > 0:
		x.r.timed(x.m, decodeRole, a.decode.engine, s.Phases.FirstToken-s.Phases.Plan, tokens-s.CachedTokens, now)
	}
}

// timed notes how long an engine took, and now and then compares all of its role.
func (r *Router) timed(m *model, role role, e *engine, took time.Duration, tokens int, now time.Time) {
	e.vitals.ObserveLatency(took, tokens, now)
	was := m.judged[role].Load()
	if at := now.UnixNano(); at-was < int64(time.Second) || !m.judged[role].CompareAndSwap(was, at) {
		return
	}
	engines := m.decode
	if role == prefillRole {
		engines = m.prefill
	}
	r.judge(engines, now, r.now().cfg.Health.Outliers)
}

// judge compares the engines of a role, and takes one out that is too slow.
func (r *Router) judge(engines []*engine, now time.Time, rules config.Outliers) {
	which, states := make([]*engine, 0, len(engines)), make([]*health.State, 0, len(engines))
	for _, e := range engines {
		if e.usable() {
			which, states = append(which, e), append(states, &e.vitals)
		}
	}
	if i, perToken := health.EjectSlowest(states, now, outlierRules(rules)); i >= 0 {
		r.log.Warn("engine is out", "engine", which[i].name, "reason", health.Slow.String(), "pause", rules.Ejected, "seconds_per_token", perToken)
	}
}
