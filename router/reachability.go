package router

import (
	"slices"
	"time"

	"pdrouter/router/fleet/health"
)

// reached notes that the engine has answered. One that is down is checked at once, and only that takes it into use again.
func (e *engine) reached() {
	if !e.proven.Load() {
		e.proven.Store(true)
	}
	if e.failures.Load() != 0 {
		e.failures.Store(0)
	}
	if !e.down.Load() {
		return
	}
	wake(e.recheck)
}

// missed notes a failure to connect or a failed health check. It reports whether the engine went down by it.
func (e *engine) missed() bool {
	e.refuses.Store(false)
	return e.failures.Add(1) >= e.limit.Load() && e.down.CompareAndSwap(false, true)
}

// progressed notes that a request on the engine has made progress.
func (e *engine) progressed() {
	if !e.progress.Load() { // it is read much more often than written
		e.progress.Store(true)
	}
}

// refused notes a refused connection: nothing listens there. It reports whether the engine went down by it.
func (e *engine) refused() bool {
	e.refuses.Store(true)
	e.failures.Add(1)
	return e.down.CompareAndSwap(false, true)
}

// late notes a health check that was not answered in time. It reports whether the engine is to go down by it: one whose requests make
// progress is only busy.
func (e *engine) late() bool {
	e.refuses.Store(false)
	return !e.progress.Load() && e.failures.Add(1) >= e.limit.Load()
}

// silent notes that the engine has not answered a connection for so long. Of several that waited at the same time one counts: a
// gateway that was not running for a moment has them end together, and the engine has done nothing.
func (e *engine) silent(now time.Time, waited time.Duration) bool {
	last := e.silence.Load()
	if now.UnixNano()-last < int64(waited) || !e.silence.CompareAndSwap(last, now.UnixNano()) {
		return false
	}
	return e.missed()
}

// restored notes that an engine that was down is healthy again. It may be another run.
func (e *engine) restored(now time.Time) {
	e.failures.Store(0)
	e.proven.Store(true)
	e.handing.renew()
	e.forget(nil) // where runs have no names, one that was down is another
	e.vitals.Reset(now)
	e.down.Store(false)
	e.refuses.Store(false)
}

// last reports whether no other engine of its role can take requests.
func (f *fleet) last(e *engine) bool {
	m := f.models[e.model]
	if m == nil {
		return false
	}
	engines := m.decode
	if slices.Contains(m.prefill, e) {
		engines = m.prefill
	}
	now := time.Now()
	return !slices.ContainsFunc(engines, func(o *engine) bool {
		return o != e && o.usable() && o.vitals.Standing(now, *f.health.SlowStart).Out == health.InUse
	})
}
