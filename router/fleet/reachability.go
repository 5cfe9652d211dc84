package fleet

import (
	"slices"
	"sync/atomic"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/fleet/health"
)

// reachability is whether an engine takes connections and answers.
type reachability struct {
	Down         atomic.Bool
	Failures     atomic.Int32  // failures to connect and failed health checks in a row
	failureLimit atomic.Int32  // how many of them make it go down
	silence      atomic.Int64  // when a connection that was not answered was counted last, in Unix nanoseconds
	refuses      atomic.Bool   // its last failure was a refused connection: nothing listens there
	Progress     atomic.Bool   // a request has made progress since the last health check began
	proven       atomic.Bool   // it has answered
	Recheck      chan struct{} // wakes the health check; has a buffer of one
}

// Reached notes that the engine has answered. One that is down is checked at once, and only that takes it into use again.
func (e *reachability) Reached() {
	if !e.proven.Load() {
		e.proven.Store(true)
	}
	if e.Failures.Load() != 0 {
		e.Failures.Store(0)
	}
	if !e.Down.Load() {
		return
	}
	background.Notify(e.Recheck)
}

// Missed notes a failure to connect or a failed health check. It reports whether the engine went down by it.
func (e *reachability) Missed() bool {
	e.refuses.Store(false)
	return e.Failures.Add(1) >= e.failureLimit.Load() && e.Down.CompareAndSwap(false, true)
}

// Progressed notes that a request on the engine has made progress.
func (e *reachability) Progressed() {
	if !e.Progress.Load() { // it is read much more often than written
		e.Progress.Store(true)
	}
}

// Refused notes a refused connection: nothing listens there. It reports whether the engine went down by it.
func (e *reachability) Refused() bool {
	e.refuses.Store(true)
	e.Failures.Add(1)
	return e.Down.CompareAndSwap(false, true)
}

// Late notes a health check that was not answered in time. It reports whether the engine goes down by it: an engine whose requests make
// progress is only busy.
func (e *reachability) Late() bool {
	e.refuses.Store(false)
	return !e.Progress.Load() && e.Failures.Add(1) >= e.failureLimit.Load()
}

// Silent notes that the engine has not answered a connection for so long. Several connections that waited at the same time count once: they
// also time out together when the gateway itself was paused.
func (e *reachability) Silent(now time.Time, waited time.Duration) bool {
	last := e.silence.Load()
	if now.UnixNano()-last < int64(waited) || !e.silence.CompareAndSwap(last, now.UnixNano()) {
		return false
	}
	return e.Missed()
}

// Restored notes that an engine that was down is healthy again. It may be another run.
func (e *Engine) Restored(now time.Time) {
	e.Failures.Store(0)
	e.proven.Store(true)
	e.HandOff.Reset()
	e.TokenIDs.Reset()
	e.forgetPrompts(nil) // where runs have no names, one that was down is another
	e.Health.Reset(now)
	e.Down.Store(false)
	e.refuses.Store(false)
}

// LastUsable reports whether no other engine of its role can take requests.
func (f *Fleet) LastUsable(e *Engine) bool {
	m := f.Models[e.Model]
	if m == nil {
		return false
	}
	engines := m.Decode
	if slices.Contains(m.Prefill, e) {
		engines = m.Prefill
	}
	now := time.Now()
	return !slices.ContainsFunc(engines, func(o *Engine) bool {
		return o != e && o.Usable() && o.Health.Standing(now, *f.health.SlowStart).Out == health.InUse
	})
}
