package fleet

import (
	"testing"
	"time"

	"pdrouter/policies"
	"pdrouter/policies/forecast"
	"pdrouter/router/scaling"
)

// firstOf is a planner that says nothing of itself.
type firstOf struct{}

func (firstOf) Choose(policies.Request, policies.Fleet, policies.Draw) policies.Choice {
	return policies.Choice{Prefill: -1}
}

// TestScalings: with every policy prompts at engines ask for more of them, in the mean of some time that outlives a reload; engines that drain are
// not counted, those that are down are no capacity.
func TestScalings(t *testing.T) {
	t.Run("no objective", func(t *testing.T) { testScalings(t, firstOf{}, 1) })
	for text, objective := range map[string]float64{"default: {policy: cost}": 1, "default: {policy: roles}": 1, "default: {policy: roles, objective: {ttft: 1s, itl: 25ms}}": .5} {
		t.Run(text, func(t *testing.T) {
			p, err := policies.Parse("p.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			testScalings(t, p, objective)
		})
	}
}

// testScalings is TestScalings with a planner, whose objective is a part of the default one.
func testScalings(t *testing.T, planner Planner, objective float64) {
	cfg := ofEngines("a", "b", "c", "d")
	parts, now := Parts{Planner: planner}, time.Now()
	f := fleetOf(t, cfg, parts, nil)
	signals := func(at time.Time) RoleScaling {
		t.Helper()
		s := f.Scalings(at)
		if len(s) != 1 || s[0].Model != "m" || len(s[0].Roles) != 1 || s[0].Roles[0].Role != "engines" {
			t.Fatalf("%+v", s)
		}
		return s[0].Roles[0]
	}
	if s := signals(now); s.Starting != 4 || s.Observed >= 0 {
		t.Errorf("engines that have not answered: %+v", s)
	}
	for _, e := range f.Engines {
		e.proven.Store(true)
		e.Health.Reset(time.Time{})
	}
	f.Engine("c").Draining.Store(true)
	f.Engine("d").Down.Store(true)
	if s := signals(now); s.Load != (scaling.Load{Ready: 2, Out: 1}) || s.Wanted != 2 {
		t.Errorf("idle: %+v", s)
	}
	legs := make([]forecast.Leg, 8)
	for i := range legs {
		legs[i].Prompt, legs[i].Uncached, legs[i].Answers = 50000, 50000, true
		f.Engine("a").Forecast().Begin(&legs[i], Seconds(now))
	}
	s := signals(now.Add(time.Second))
	if full, known := s.Saturation(); !known || full < 1 || s.Backlog < 1 || s.Wanted != 2 {
		t.Errorf("a burst of a second: %+v", s)
	}
	f = fleetOf(t, cfg, parts, f)
	f.Engine("c").Draining.Store(true)
	for i := range 18 {
		s = signals(now.Add(time.Duration(i) * 5 * time.Second))
	}
	if s.Wanted != 5 { // twice as many, and the one that is down
		t.Errorf("after a minute: %+v", s)
	}

	m := f.Models["m"]
	for range 10 {
		m.ObserveTTFT(now, 4*time.Second) // the default is 2 s
		m.ObserveITL(now, 10*time.Millisecond)
	}
	if s := f.Scalings(now)[0]; s.TTFT*objective < 2 || s.TTFT*objective > 2.3 || s.ITL*objective < .2 || s.ITL*objective > .23 {
		t.Errorf("times over the objective: %+v", s)
	}
	if s := f.Scalings(now.Add(2 * time.Minute))[0]; s.TTFT >= 0 || s.ITL >= 0 {
		t.Errorf("times of two minutes ago: %+v", s)
	}
}
