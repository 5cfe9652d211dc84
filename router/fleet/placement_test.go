package fleet

import (
	"testing"
	"time"

	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/openai"
)

// TestPlacementChangesLive: policies see an engine's placement, and a change of it is no change of the engine.
func TestPlacementChangesLive(t *testing.T) {
	cfg := ofEngines("a", "b")
	p, err := policies.Parse("p.yaml", []byte("default: {decode: {policy: least_load, filters: [{name: zone, zone: z}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	parts := Parts{Planner: p}
	first := fleetOf(t, cfg, parts, nil)
	first.Engine("b").Health.Reset(time.Time{})
	cfg.Models[0].Engines[1].Zone = "z"
	second := fleetOf(t, cfg, parts, first)
	if first.Engine("b") != second.Engine("b") {
		t.Fatal("the engine was replaced as its zone changed")
	}
	for range 4 {
		var k Selection
		k.Init(second, second.Models["m"], openai.Shape(0), nil, "", 0)
		k.Begin(Excluded{}, false)
		if c, _ := k.Choose(policies.Request{Model: "m"}); c.Decode != 1 {
			t.Errorf("engine %d was chosen (%s); want 1, which is of the zone", c.Decode, c.Why())
		}
	}
}

// TestPlacementIsChecked names each mistake.
func TestPlacementIsChecked(t *testing.T) {
	of := func(w float64) *float64 { return &w }
	for want, place := range map[string]config.Placement{
		"models[0].engines[0].weight is 1.5; want more than 0, at most 1; use drain for none":    {Weight: of(1.5)},
		"models[0].engines[0].weight is -1; want more than 0, at most 1; use drain for none":     {Weight: of(-1)},
		"models[0].engines[0].weight is 0; want more than 0, at most 1; use drain for none":      {Weight: of(0)},
		"models[0].engines[0].prompt_tokens.min is -1; want 0 or more":                           {PromptTokens: config.TokenRange{Min: -1}},
		"models[0].engines[0].prompt_tokens.max is 4; want min or more, or nothing for no bound": {PromptTokens: config.TokenRange{Min: 5, Max: 4}},
	} {
		cfg := ofEngines("a")
		cfg.Models[0].Connector = "none"
		cfg.Models[0].Engines[0].Placement = place
		if err := cfg.Validate(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v; want %s", place, err, want)
		}
	}
}
