package router

import (
	"slices"
	"time"

	"pdrouter/router/fleet/health"
)

// late notes a health check that was not answered in time. An engine whose requests make progress is only busy, and the last one
// of a role that can take requests is never taken out for being slow.
func (r *Router) late(e *engine) {
	if !e.late() {
		return
	}
	r.slowest.Lock()
	defer r.slowest.Unlock()
	if !r.last(e) {
		r.now().fleet.wentDown(e, e.down.CompareAndSwap(false, true))
	}
}

// last reports whether no other engine of its role can take requests.
func (r *Router) last(e *engine) bool {
	s := r.now()
	m := s.fleet.models[e.model]
	if m == nil {
		return false
	}
	engines := m.decode
	if slices.Contains(m.prefill, e) {
		engines = m.prefill
	}
	now := time.Now()
	return !slices.ContainsFunc(engines, func(o *engine) bool {
		return o != e && o.usable() && o.vitals.Standing(now, *s.cfg.Health.SlowStart).Out == health.InUse
	})
}
