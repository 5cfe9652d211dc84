package router_test

import (
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// eitherPool is n engines of either role.
func eitherPool(t *testing.T, n int, faults map[string][]routertest.Fault) *routertest.Pool {
	s := routertest.NewPool(t, connector.NamePull, 1, n-1, faults)
	m := &s.Config.Models[0]
	m.Engines = append(m.Prefill, m.Decode...)
	m.Prefill, m.Decode = nil, nil
	return s
}

// TestEitherRole: of engines of either role, any may be prefill of one request and decode of the next, none of both at once.
func TestEitherRole(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {prefill: random, decode: random}"))
	if err != nil {
		t.Fatal(err)
	}
	routertest.RunVirtual(t, connector.NamePull, func(t *testing.T) {
		s := eitherPool(t, 3, nil)
		g := routertest.Start(t, s.Config, router.Parts{Planner: p})
		g.WaitWarm()
		if pairs := g.Router.Stats().Pairs; len(pairs) != 6 {
			t.Errorf("%d pairs; want 6: %+v", len(pairs), pairs)
		}
		seen := map[string]bool{}
		for n := 1; n <= 100; n++ {
			g.MustServe(n, `{"model":"tiny","prompt":"a b c","max_tokens":4}`)
			sum := g.Summary(n)
			if sum.Reason != "split" || sum.Prefill == sum.Decode {
				t.Fatalf("%s by %s and %s", sum.Reason, sum.Prefill, sum.Decode)
			}
			seen[sum.Prefill+" "+sum.Decode] = true
		}
		if len(seen) != 6 {
			t.Errorf("pairs %v; want all 6", seen)
		}
		s.CheckNothingHeld(t)
	})
}

// TestEitherRoleAlone: a single engine of either role, one whose peers are gone, and one that hands nothing off serve alone.
func TestEitherRoleAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		n      int
		faults map[string][]routertest.Fault
		policy string
		want   string
	}{
		"one engine":              {n: 1, want: "no_pair"},
		"hands nothing off":       {n: 2, faults: map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoBare}}, "decode-0": {{Leg: "prefill", Do: routertest.DoBare}}}, want: "no_transfer_params"},
		"one engine and no other": {n: 1, policy: "{policy: cost}", want: "no_pair"},
	} {
		t.Run(name, func(t *testing.T) {
			routertest.RunVirtual(t, connector.NamePull, func(t *testing.T) {
				if tt.policy == "" {
					tt.policy = "{prefill: least_load}"
				}
				p, err := policies.Parse("p.yaml", []byte("default: "+tt.policy))
				if err != nil {
					t.Fatal(err)
				}
				s := eitherPool(t, tt.n, tt.faults)
				g := routertest.Start(t, s.Config, router.Parts{Planner: p})
				routertest.Eventually(t, "it is ready", func() bool { return g.Router.Stats().Ready })
				for n := 1; n <= 3; n++ {
					r := g.Post("/v1/completions", `{"model":"tiny","prompt":"a b c","max_tokens":4}`)
					g.WaitIdle()
					if sum := g.Summary(n); r.Status != 200 || sum.Reason != tt.want {
						t.Errorf("status %d, %s by %q and %q: %s", r.Status, sum.Reason, sum.Prefill, sum.Decode, strings.TrimSpace(string(r.Body)))
					}
				}
				s.CheckNothingHeld(t)
			})
		})
	}
}

// TestEitherRoleFaults: an engine that fails as prefill is left out as decode, too, and the request is served by the others.
func TestEitherRoleFaults(t *testing.T) {
	for _, fault := range []routertest.Fault{{Leg: "prefill", Do: routertest.DoError}, {Leg: "decode", Do: routertest.DoError}, {Do: routertest.DoReset}, {Leg: "decode", Do: routertest.DoBreak, N: 0}} {
		t.Run(fault.Leg+" "+fault.Do, func(t *testing.T) {
			routertest.RunVirtual(t, connector.NamePull, func(t *testing.T) {
				s := eitherPool(t, 3, nil)
				g := routertest.Start(t, s.Config, router.Parts{})
				g.WaitWarm()
				s.SetFaults(map[string][]routertest.Fault{"decode-1": {fault}})
				for range 10 {
					if r := g.Post("/v1/completions", `{"model":"tiny","prompt":"a b c","max_tokens":4}`); r.Status != 200 {
						t.Errorf("status %d: %s", r.Status, r.Body)
					}
				}
				g.WaitIdle()
				if fault.Leg == "prefill" { // else decode may have read: what prefill holds stays for the lease
					s.CheckNothingHeld(t)
				}
			})
		})
	}
}
