package forecast

import (
	"testing"

	"pdrouter/policies"
)

// TestOthers: what other gateways have at an engine adds to its work, and not to what this gateway says of its own.
func TestOthers(t *testing.T) {
	m := scripted()
	e := m.NewEngine()
	prompt, answer := Leg{Prompt: 1000, Uncached: 1000}, Leg{Prompt: 200, Answers: true}
	e.Begin(&prompt, 10)
	e.Begin(&answer, 10)
	e.SetOthers(Others{Wait: 2, Streams: 3, Context: 500, Prompts: .5})
	w := e.Work(10)
	if !near(w.Wait, 3, .01) || w.Streams != 4 || w.Context != 700 || w.Prompts < .5 || w.Prompts > .9 {
		t.Errorf("work %+v", w)
	}
	if o := e.Own(10); !near(o.Wait, 1, .01) || o.Streams != 1 || o.Context != 200 {
		t.Errorf("own %+v", o)
	}
	e.SetOthers(Others{Prompts: 5})
	if w := e.Work(11); w.Streams != 1 || w.Prompts != .9 {
		t.Errorf("work %+v", w)
	}
	m.Arrived(11)
	own := m.Rate(11)
	m.SetOthersRate(2)
	if d := m.Demand(11); own <= 0 || !near(d.Rate, own+2, .01) || m.Rate(11) != own {
		t.Errorf("rates %v, own %v", d.Rate, m.Rate(11))
	}
}

// TestOthersTeachNothing: a prompt that has waited for another gateway's is not taken for a slow one, and the streams that others have explain slow
// steps.
func TestOthersTeachNothing(t *testing.T) {
	m := NewModel()
	e := m.NewEngine()
	seconds := func() float64 {
		w := e.Work(1e6)
		x := policies.PromptTerms(1000, 1000, 0)
		sum := 0.0
		for i := range x {
			sum += x[i] * w.Speed.Prompt[i]
		}
		return sum
	}
	before := seconds()
	for i := range 50 {
		now := float64(100 * i)
		l := Leg{Prompt: 1000, Uncached: 1000}
		e.SetOthers(Others{Wait: 30})
		e.Begin(&l, now)
		if i%2 == 0 {
			e.SetOthers(Others{}) // others' prompts were before it, and are computed
		}
		e.FirstToken(&l, now+30)
		e.End(&l, now+30)
	}
	if got := seconds(); !near(got, before, .01) {
		t.Errorf("a prompt takes %.2f s; was %.2f s", got, before)
	}
	steps := func(others int) float64 { // seconds of a step with one stream, after steps of 100 ms with so many streams of others
		m := NewModel()
		e := m.NewEngine()
		l := Leg{Prompt: 100, Answers: true, Late: 1}
		e.Begin(&l, 0)
		e.SetOthers(Others{Streams: others})
		e.FirstToken(&l, 0)
		for i := range 100 {
			e.Said(&l, 1.6*float64(i+1), 16)
		}
		e.SetOthers(Others{})
		w := e.Work(100)
		return w.Speed.Step[0] + w.Speed.Step[1] + w.Speed.Step[2]*float64(w.Context)
	}
	if alone, among := steps(0), steps(500); among > alone/2 {
		t.Errorf("a step takes %.3f s, though it was slow with 500 other streams; %.3f s without them", among, alone)
	}
}
