package fleet

import (
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
)

// WentDown follows up on an engine that may just have gone down, as went says. Requests that wait for it may have to be told that
// none comes back.
func (f *Fleet) WentDown(e *Engine, went bool) {
	if went {
		f.log.Warn("engine is down", "engine", e.Name)
	}
	if m := f.Models[e.Model]; m != nil {
		m.Queue.Update()
	}
}

// Succeeded notes that an engine did well.
func (f *Fleet) Succeeded(e *Engine, k health.FailureKind, now time.Time) {
	if e.Health.Succeeded(k, now) {
		f.inUse(e)
	}
}

// AnsweredWhole notes that an engine has given a whole answer.
func (f *Fleet) AnsweredWhole(e *Engine, now time.Time) {
	if e.Health.SucceededWhole(now) {
		f.inUse(e)
	}
}

func (f *Fleet) inUse(e *Engine) { f.log.Info("engine is in use again", "engine", e.Name) }

// Failed notes that an engine failed.
func (f *Fleet) Failed(e *Engine, k health.FailureKind, now time.Time) {
	if pause, out := e.Health.Failed(k, now, engineRules(f.health)); out {
		f.log.Warn("engine is out", "engine", e.Name, "reason", (health.Answers + health.Ejection(k)).String(), "pause", pause)
	}
}

// Overloaded notes that an engine has too much to do, and has asked for no more requests before rest is over; 0 if it has not.
func (f *Fleet) Overloaded(e *Engine, now time.Time, rest time.Duration) {
	e.Health.Refused(now, rest, f.health.Overload)
}

// TransferEnded notes how a transfer between the two has ended. It reports whether the pair is out by it: then it must shake hands again.
func (f *Fleet) TransferEnded(c *Pair, good bool) bool {
	var now time.Time
	if !good { // what succeeds nearly always needs no clock
		now = time.Now()
	}
	pause, out := c.TransferEnded(good, now, PairRules(f.health))
	if out {
		f.log.Warn("pair is out: transfers fail", "prefill", c.Prefill.Name, "decode", c.Decode.Name, "pause", pause)
	}
	return out
}

// HandedNothing notes an answer of a prefill engine that has handed nothing off on a route.
func (f *Fleet) HandedNothing(e *Engine, sh openai.Shape, now time.Time) {
	if pause := e.HandOff.Kept(sh, now, PairRules(f.health)); pause > 0 {
		f.log.Warn("prefill engine hands nothing off", "engine", e.Name, "route", sh.String(), "pause_seconds", pause.Seconds())
	}
}

// Size returns how many ranks an engine that publishes records has along each axis; zero if it has published none.
func (f *Fleet) Size(e *Engine) metadata.Rank {
	records := f.Records(e)
	if len(records) == 0 {
		return metadata.Rank{}
	}
	return records[0].Size
}
