package router_test

import (
	"fmt"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestShadow: a second policy says what it would have chosen, and changes nothing.
func TestShadow(t *testing.T) {
	policy := func(text string) *policies.Policy {
		p, err := policies.Parse("p.yaml", []byte("default: "+text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, tt := range map[string]struct {
		live, shadow, want string
	}{
		"the same by chance": {"{decode: random, prefill: power_of_two}", "{decode: random, prefill: power_of_two}", "same"},
		"the same":           {"{decode: session, prefill: session}", "{decode: session, prefill: session}", "same"},
		"another decode":     {"{decode: {filters: [{name: zone, zone: a}], scorers: [load]}}", "{decode: {filters: [{name: zone, zone: b}], scorers: [load]}}", "other_decode"},
		"another prefill":    {"{decode: session, prefill: {filters: [{name: zone, zone: a}], scorers: [load]}}", "{decode: session, prefill: {filters: [{name: zone, zone: b}], scorers: [load]}}", "other_prefill"},
		"one engine alone":   {"{decode: session}", "{decode: session, split: {min_prompt_tokens: 1000000}}", "other_path"},
		"none":               {"{decode: session}", "{decode: {filters: [{name: zone, zone: c, strict: true}]}}", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			routertest.RunVirtual(t, connector.NamePull, func(t *testing.T) {
				s := routertest.NewPool(t, connector.NamePull, 2, 2, nil)
				for i, zone := range []string{"a", "b"} {
					s.Config.Models[0].Prefill[i].Zone, s.Config.Models[0].Decode[i].Zone = zone, zone
				}
				g := routertest.Start(t, s.Config, router.Parts{Planner: policy(tt.live), Shadow: policy(tt.shadow)})
				g.WaitWarm() // else the choice is among the pairs that are warm
				for n := 1; n <= 3; n++ {
					if r := g.Post("/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":4}`, "X-Session-Id", fmt.Sprint(n)); r.Status != 200 {
						t.Fatalf("status %d: %s", r.Status, r.Body)
					}
					g.WaitIdle()
					sum := g.Summary(n)
					if sum.Shadow == nil || sum.Shadow.Result != tt.want {
						t.Fatalf("%+v; want %s", sum.Shadow, tt.want)
					}
					if sum.Reason != "split" || sum.Prefill == "" {
						t.Errorf("served with reason %s by %s and %s: the shadow has an effect", sum.Reason, sum.Prefill, sum.Decode)
					}
				}
			})
		})
	}
}
