package leg

import (
	"sync"
	"time"

	"pdrouter/policies/forecast"
	"pdrouter/router/fleet"
)

// Work is a leg's part in what is forecast of its engine. Of a nil one, where nothing is, the methods do nothing. They are for one goroutine at
// a time.
type Work struct {
	forecast.Leg
	Moves   int  // tokens of the prompt whose KV comes from another engine; an estimate, as the others
	Guessed bool // nobody knew how many tokens of the prompt the engine has cached

	engine *forecast.Engine
}

// works are those of legs that are over: a request allocates nothing for its forecast.
var works = sync.Pool{New: func() any { return new(Work) }}

// Forecast notes that the leg's engine is to do this work.
func (l *Leg) Forecast(w *Work) {
	l.Work = works.Get().(*Work)
	*l.Work = *w
	l.Work.engine = l.Engine.Forecast()
	l.Work.engine.Begin(&l.Work.Leg, fleet.Seconds(time.Now()))
}

// CountCached notes how many tokens of the prompt the engine says it had cached, if its whole answer does. It is called before Computed and Whole.
func (l *Leg) CountCached() {
	if w, a := l.Work, &l.Answer; w != nil && w.Guessed && a.PromptTokens > 0 && a.SaysCached() {
		w.engine.Counted(&w.Leg, w.Prompt*a.Cached()/a.PromptTokens)
	}
}

// Computed notes that the prompt is computed.
func (w *Work) Computed() {
	if w != nil {
		w.engine.FirstToken(&w.Leg, fleet.Seconds(time.Now()))
	}
}

// Said notes that so many tokens of an answer have come together.
func (w *Work) Said(tokens int) {
	if w != nil {
		w.engine.Said(&w.Leg, fleet.Seconds(time.Now()), tokens)
	}
}

// Whole notes that the whole answer has come, of so many tokens.
func (w *Work) Whole(tokens int) {
	if w != nil {
		w.engine.Whole(&w.Leg, fleet.Seconds(time.Now()), tokens)
	}
}

// endWork notes that the engine has no more to do.
func (l *Leg) endWork() {
	if w := l.Work; w != nil {
		w.engine.End(&w.Leg, fleet.Seconds(time.Now()))
		l.Work = nil
		works.Put(w)
	}
}
