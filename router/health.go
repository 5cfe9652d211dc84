package router

import (
	"errors"
	"net"
	"slices"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
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
		r.isDown(e, e.down.CompareAndSwap(false, true))
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

// isDown tells of an engine that has just gone down. Requests that wait for it may have to be told that nobody comes back.
func (r *Router) isDown(e *engine, now bool) {
	if now {
		r.log.Warn("engine is down", "engine", e.name)
	}
	r.updateQueue(e)
}

// saw learns from a request's leg what its engine is like. It is called once per leg that was asked, when its answer is here
// or will not come; of a stream, when its first event is.
func (r *Router) saw(l *call, v verdict) {
	r.reach(l, v)
	e, now := l.engine, time.Now()
	switch l.faultOf(v) {
	case faultNone:
		if openai.IsEventStream(l.ctype) {
			r.good(e, health.AnswerFailed, now)
		} else if e.vitals.SucceededWhole(now) {
			r.inUse(e)
		}
	case faultOverload:
		e.vitals.Refused(now, l.rest, r.now().cfg.Health.Overload)
	case faultEngine:
		r.bad(e, health.AnswerFailed, now)
	}
}

// sawProbe learns from a handshake's leg what its engine is like. A failure may be the peer's: the pair's pause is enough.
func (r *Router) sawProbe(l *call, v verdict) {
	r.reach(l, v)
	if v == vUsable {
		r.good(l.engine, health.AnswerFailed, time.Now())
	}
}

// reach notes whether the engine takes connections.
func (r *Router) reach(l *call, v verdict) {
	switch {
	case l.status != 0:
		l.engine.reached()
		l.engine.progressed()
	case v == vRefused && !ourOwn(l.err):
		down := false
		var late net.Error
		switch {
		case refuses(l.err):
			down = l.engine.refused()
		case errors.As(l.err, &late) && late.Timeout():
			down = l.engine.silent(time.Now(), r.now().cfg.Timeouts.Connect)
		default:
			down = l.engine.missed()
		}
		r.isDown(l.engine, down)
	}
}

// sawStream learns how a stream that had begun has ended, as far as that is the engine's doing: why is None if its
// terminal event came. It is called before the leg is ended.
func (r *Router) sawStream(l *call, why reason.Reason) {
	switch {
	case why == reason.AnswerTooLarge:
	case why == reason.None:
		r.good(l.engine, health.StreamFailed, time.Now())
	case l.Cause() == nil, errors.Is(l.Cause(), errLegLate):
		r.bad(l.engine, health.StreamFailed, time.Now())
	}
}

// good notes that an engine did well.
func (r *Router) good(e *engine, s health.FailureKind, now time.Time) {
	if e.vitals.Succeeded(s, now) {
		r.inUse(e)
	}
}

func (r *Router) inUse(e *engine) { r.log.Info("engine is in use again", "engine", e.name) }

// bad notes that an engine failed.
func (r *Router) bad(e *engine, s health.FailureKind, now time.Time) {
	if pause, out := e.vitals.Failed(s, now, engineRules(r.now().cfg.Health)); out {
		r.log.Warn("engine is out", "engine", e.name, "reason", (health.Answers + health.Ejection(s)).String(), "pause", pause)
	}
}

// sawPair learns from the decode leg of a split request what the two engines are to each other. Either may be at fault for
// a transfer that fails: with others both go on.
func (r *Router) sawPair(c *couple, runs metadata.Pair, l *call, v verdict) {
	good := v == vUsable
	failed := l.ans.ErrorCode == codeTransferFailed || errors.Is(l.Cause(), errTransferLate) || v == vBroken && l.faultOf(v) == faultEngine
	if good || failed {
		r.sawTransfer(c, runs, good)
	}
}

// sawTransfer notes how a transfer between the two has ended.
func (r *Router) sawTransfer(c *couple, runs metadata.Pair, good bool) {
	var now time.Time
	if !good { // what succeeds nearly always needs no clock
		now = time.Now()
	}
	pause, out := c.transferred(good, now, pairRules(r.now().cfg.Health))
	if !out {
		return
	}
	r.log.Warn("pair is out: transfers fail", "prefill", c.prefill.name, "decode", c.decode.name, "pause", pause)
	r.pairs.ForgetPair(runs) // the next handshake is its probe
	r.rewarm()
}
