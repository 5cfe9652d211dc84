package leg

import (
	"time"

	"pdrouter/policies/forecast"
	"pdrouter/router/fleet"
)

// Work is a leg's part in what is forecast of its engine. Of a nil one, where nothing is, the methods do nothing. They are for one goroutine at
// a time.
type Work struct {
	Prompt   int           // tokens of the prompt; an estimate, as the others
	Uncached int           // of these, tokens that the engine has to compute
	Moves    int           // of these, tokens whose KV comes from another engine
	Late     time.Duration // a token of the answer that comes so long after another is late

	engine *forecast.Engine
	leg    forecast.Leg
	last   time.Time // when a token came; zero before the first

	tokens, even, long int // that were not told yet
	seconds            float64
}

// toldEvery is how many tokens are told to the forecast at once, so that a token costs no lock.
const toldEvery = 16

// Forecast notes that the leg's engine is to do this work, if anything is forecast of the engine. answers says that the leg brings the answer,
// streams that it shows when its first token comes.
func (l *Leg) Forecast(w Work, answers, streams bool) {
	if w.engine = l.Engine.Forecast(); w.engine != nil {
		l.Work = &w
		w.engine.Begin(&l.Work.leg, fleet.Seconds(time.Now()), w.Prompt, w.Uncached, answers, !streams)
	}
}

// Computed notes that the prompt is computed.
func (w *Work) Computed() {
	if w != nil {
		w.last = time.Now()
		w.engine.FirstToken(&w.leg, fleet.Seconds(w.last))
	}
}

// Said notes that so many tokens of an answer have come together.
func (w *Work) Said(tokens int) {
	if w == nil || tokens <= 0 || w.last.IsZero() {
		return
	}
	now := time.Now()
	gap := now.Sub(w.last)
	w.last = now
	if gap > w.Late*time.Duration(tokens) {
		w.long++
	} else {
		w.even += tokens
		w.seconds += gap.Seconds()
	}
	if w.tokens += tokens; w.tokens >= toldEvery {
		w.tell(now)
	}
}

func (w *Work) tell(now time.Time) {
	w.engine.Said(&w.leg, fleet.Seconds(now), w.tokens, w.even, w.seconds, w.long)
	w.tokens, w.even, w.long, w.seconds = 0, 0, 0, 0
}

// End notes that the engine has no more to do. It may be called twice.
func (w *Work) End() {
	if w == nil {
		return
	}
	now := time.Now()
	if w.tokens > 0 {
		w.tell(now)
	}
	w.engine.End(&w.leg, fleet.Seconds(now))
}
