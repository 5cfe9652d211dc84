package fleet

import (
	"testing"
	"time"

	"pdrouter/policies"
	"pdrouter/policies/forecast"
	"pdrouter/router/openai"
)

// TestForecastWithoutPrompt: a stream that goes on elsewhere has no prompt to look for, and the policy cost still knows what engines have to do.
// What is known of them outlives a reload.
func TestForecastWithoutPrompt(t *testing.T) {
	cfg := ofEngines("a", "b")
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	parts := Parts{Planner: p}
	f := fleetOf(t, cfg, parts, fleetOf(t, cfg, parts, nil))
	for _, e := range f.Engines {
		e.Health.Reset(time.Time{})
	}
	legs := make([]forecast.Leg, 500)
	for i := range legs {
		legs[i].Prompt, legs[i].Answers = 5000, true
		f.Engine("a").Forecast().Begin(&legs[i], Seconds(time.Now()))
	}
	f = fleetOf(t, cfg, parts, f)
	for range 4 {
		var k Selection
		k.Init(f, f.Models["m"], openai.Shape(0), nil, "", 0)
		k.Begin(Excluded{}, false)
		if c := k.ChooseDecode(); c.Decode != 1 {
			t.Errorf("engine %d was chosen (%s); want 1, which has nothing to do", c.Decode, c.Why())
		}
	}
}

// TestForecastOfGoneEngine: what is known of an engine's hand-offs to others is forgotten with the engine.
func TestForecastOfGoneEngine(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	parts := Parts{Planner: p}
	was := fleetOf(t, ofEngines("a", "b"), parts, nil)
	m, a, b := was.Models["m"].Forecast, was.Engine("a").Forecast(), was.Engine("b").Forecast()
	m.Moved(0, a, b, 10, 1)
	known := m.HandOff(a, b)
	fleetOf(t, ofEngines("a", "b"), parts, was)
	if got := m.HandOff(a, b); got != known {
		t.Errorf("after a reload the pair takes %v; want %v", got, known)
	}
	fleetOf(t, ofEngines("b"), parts, was)
	if got := m.HandOff(a, b); got == known {
		t.Error("the pair is known still")
	}
}
