package router

import (
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
)

// wentDown follows up on an engine that may just have gone down, as went says. Requests that wait for it may have to be told that
// none comes back.
func (f *fleet) wentDown(e *engine, went bool) {
	if went {
		f.log.Warn("engine is down", "engine", e.name)
	}
	if m := f.models[e.model]; m != nil {
		m.queue.Update()
	}
}

// succeeded notes that an engine did well.
func (f *fleet) succeeded(e *engine, k health.FailureKind, now time.Time) {
	if e.vitals.Succeeded(k, now) {
		f.inUse(e)
	}
}

// answeredWhole notes that an engine has given a whole answer.
func (f *fleet) answeredWhole(e *engine, now time.Time) {
	if e.vitals.SucceededWhole(now) {
		f.inUse(e)
	}
}

func (f *fleet) inUse(e *engine) { f.log.Info("engine is in use again", "engine", e.name) }

// failed notes that an engine failed.
func (f *fleet) failed(e *engine, k health.FailureKind, now time.Time) {
	if pause, out := e.vitals.Failed(k, now, engineRules(f.health)); out {
		f.log.Warn("engine is out", "engine", e.name, "reason", (health.Answers + health.Ejection(k)).String(), "pause", pause)
	}
}

// overloaded notes that an engine has too much to do, and has asked for no more requests before rest is over; 0 if it has not.
func (f *fleet) overloaded(e *engine, now time.Time, rest time.Duration) {
	e.vitals.Refused(now, rest, f.health.Overload)
}

// transferred notes how a transfer between the two has ended. It reports whether the pair is out by it: then it must shake hands again.
func (f *fleet) transferred(c *couple, good bool) bool {
	var now time.Time
	if !good { // what succeeds nearly always needs no clock
		now = time.Now()
	}
	pause, out := c.transferred(good, now, pairRules(f.health))
	if out {
		f.log.Warn("pair is out: transfers fail", "prefill", c.prefill.name, "decode", c.decode.name, "pause", pause)
	}
	return out
}

// handedNothing notes an answer of a prefill engine that has handed nothing off on a route.
func (f *fleet) handedNothing(e *engine, sh openai.Shape, now time.Time) {
	if pause := e.handing.kept(sh, now, pairRules(f.health)); pause > 0 {
		f.log.Warn("prefill engine hands nothing off", "engine", e.name, "route", sh.String(), "pause_seconds", pause.Seconds())
	}
}

// size returns how many ranks an engine that publishes records has along each axis; zero if it has published none.
func (f *fleet) size(e *engine) metadata.Rank {
	records := f.records(e)
	if len(records) == 0 {
		return metadata.Rank{}
	}
	return records[0].Size
}
