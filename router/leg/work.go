package leg

import (
	"time"

	"pdrouter/policies/forecast"
	"pdrouter/router/fleet"
)

// Work is a leg's part in what is forecast of its engine. Of a nil one, where nothing is, the methods do nothing. They are for one goroutine at
// a time.
type Work struct {
	forecast.Leg
	Moves int // tokens of the prompt whose KV comes from another engine; an estimate, as the others

	engine *forecast.Engine
}

// Forecast notes that the leg's engine is to do this work, if anything is forecast of the engine.
func (l *Leg) Forecast(w Work) {
	if w.engine = l.Engine.Forecast(); w.engine != nil {
		l.Work = &w
		w.engine.Begin(&l.Work.Leg, fleet.Seconds(time.Now()))
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

// End notes that the engine has no more to do. It may be called twice.
func (w *Work) End() {
	if w != nil {
		w.engine.End(&w.Leg, fleet.Seconds(time.Now()))
	}
}
