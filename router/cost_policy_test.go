package router_test

import (
	"fmt"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestCostPolicy has the policy cost serve streams and whole answers, and clients that leave. It learns from them, and when nothing is under way
// it knows of nothing (WaitIdle).
func TestCostPolicy(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{connector.NamePull, connector.NamePush, connector.NameKVPlane, connector.NameNone} {
		t.Run(name, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				prefill := 2
				if name == connector.NameNone {
					prefill = 0
				}
				s, parts := routertest.NewPoolIn(t, n, name, prefill, 2)
				parts.Planner = p
				g := routertest.StartIn(t, n, s.Config, parts)
				if name != connector.NameNone {
					g.WaitWarm()
				}
				body := func(n int, stream bool) string {
					return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":8,"stream":%t}`, strings.Repeat(fmt.Sprint(n, " "), 2000), stream)
				}
				predicted := 0
				for n := 1; n <= 12; n++ {
					if r := g.Post("/v1/completions", body(n, n%3 > 0)); r.Status != 200 {
						t.Fatalf("status %d: %s", r.Status, r.Body)
					}
					g.WaitIdle()
					sum := g.Summary(n)
					if sum.Predicted > 0 {
						predicted++
					}
					if !strings.HasPrefix(sum.Why, "cost ") {
						t.Errorf("why: %s", sum.Why)
					}
					if reason := sum.Reason; reason != "split" && reason != string(policies.Cheaper) && reason != "aggregated" {
						t.Errorf("reason: %s", reason)
					}
				}
				if predicted != 8 {
					t.Errorf("%d first tokens were predicted; want those of 8 streams", predicted)
				}
				_, e, _ := explain(t, g, "/explain/v1/completions", body(1, true))
				if len(e.Paths) == 0 || e.Paths[0].Price > e.Paths[len(e.Paths)-1].Price || !e.Paths[0].Taken {
					t.Errorf("paths %+v", e.Paths)
				}
				_, urgent, _ := explain(t, g, "/explain/v1/completions", body(1, true), "X-Slo-Ttft-Ms", "1")
				if len(urgent.Paths) == 0 || urgent.Paths[0].Late < 100*e.Paths[0].Late {
					t.Errorf("paths with an objective of 1 ms: %+v; without: %+v", urgent.Paths, e.Paths)
				}
				if code, _, text := explain(t, g, "/explain/v1/completions", body(1, true), "X-Slo-Itl-Ms", "0"); code != 400 || !strings.Contains(text, "X-Slo-Itl-Ms must be milliseconds") {
					t.Errorf("%d %s", code, text)
				}
				if r := g.Post("/v1/completions", body(1, true), "X-Llm-D-Slo-Ttft-Ms", "soon"); r.Status != 400 || !strings.Contains(string(r.Body), "bad_field") && !strings.Contains(string(r.Body), "X-Llm-D-Slo-Ttft-Ms") {
					t.Errorf("%d %s", r.Status, r.Body)
				}
				st := g.Router.Stats()
				if _, ok := st.Forecasts["tiny"]; !ok || st.Engines[0].Forecast.Streams != 0 {
					t.Errorf("forecasts %+v, %+v", st.Forecasts, st.Engines[0].Forecast)
				}
				roles := []string{"prefill", "decode"}
				if name == connector.NameNone {
					roles = []string{"engines"}
				}
				if len(st.Scalings) != 1 || len(st.Scalings[0].Roles) != len(roles) || st.Scalings[0].TTFT < 0 || st.Scalings[0].ITL < 0 {
					t.Fatalf("scaling %+v", st.Scalings)
				}
				for i, r := range st.Scalings[0].Roles {
					if r.Role != roles[i] || r.Ready+r.Starting != 2 || r.Wanted < 1 || r.Wanted > 2 || r.Backlog != 0 {
						t.Errorf("scaling of %s: %+v", roles[i], r)
					}
				}
				s.CheckNothingHeld(t)
			})
		})
	}
}

// TestCostPolicyFaults: whatever becomes of legs, nothing is left of them in what is forecast.
func TestCostPolicyFaults(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost, objective: {ttft: 1us}}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{connector.NamePull, connector.NamePush} {
		for _, engine := range []string{"prefill-0", "decode-0"} {
			for _, fault := range []routertest.Fault{{Do: routertest.DoError}, {Do: routertest.DoBusy}, {Do: routertest.DoReset}, {Do: routertest.DoBreak, N: 2}, {Do: routertest.DoGarbage}, {Do: routertest.DoErrFrame, N: 2}} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, engine, fault.Do), func(t *testing.T) {
					routertest.RunVirtual(t, name, func(t *testing.T) {
						s := routertest.NewPool(t, name, 1, 1, map[string][]routertest.Fault{engine: {fault}})
						g := routertest.Start(t, s.Config, router.Parts{Planner: p})
						for range 3 {
							g.Post("/v1/completions", `{"model":"tiny","prompt":"a b c","max_tokens":8,"stream":true}`)
						}
						g.WaitIdle()
					})
				})
			}
		}
	}
}

// TestCostPolicyLearnsFromWholeAnswers: engines that serve requests alone and stream nothing are known to be slow, too.
func TestCostPolicyLearnsFromWholeAnswers(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	routertest.RunVirtual(t, connector.NameNone, func(t *testing.T) {
		s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 2000}}})
		g := routertest.Start(t, s.Config, router.Parts{Planner: p})
		body := func(stream bool) string {
			return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":2,"stream":%t}`, strings.Repeat("a b ", 2000), stream)
		}
		predicted := func() float64 {
			_, e, _ := explain(t, g, "/explain/v1/completions", body(true))
			if len(e.Paths) != 1 {
				t.Fatalf("paths %+v", e.Paths)
			}
			return e.Paths[0].TTFT
		}
		before := predicted()
		for range 20 {
			if r := g.Post("/v1/completions", body(false)); r.Status != 200 {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
		}
		g.WaitIdle()
		if after := predicted(); after < 3*before || after < 1 {
			t.Errorf("a first token in %.2f s, %.2f s before any answer; want some seconds", after, before)
		}
	})
}

// TestCostPolicyLearnsOnlyFromOneChoice: an answer of several choices in one leg says nothing of how fast its engine is, as they were made at once.
func TestCostPolicyLearnsOnlyFromOneChoice(t *testing.T) {
	p, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	prompt := strings.Repeat("a b ", 2000)
	for _, more := range []string{fmt.Sprintf(`"prompt":%q,"n":2`, prompt), fmt.Sprintf(`"prompt":[%q,%q]`, prompt, prompt), fmt.Sprintf(`"prompt":%q,"best_of":2`, prompt)} {
		routertest.RunVirtual(t, connector.NameNone, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: 2000}}})
			g := routertest.Start(t, s.Config, router.Parts{Planner: p})
			predicted := func() float64 {
				_, e, _ := explain(t, g, "/explain/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":2,"stream":true}`, prompt))
				if len(e.Paths) != 1 {
					t.Fatalf("paths %+v", e.Paths)
				}
				return e.Paths[0].TTFT
			}
			before := predicted()
			for range 20 {
				if r := g.Post("/v1/completions", `{"model":"tiny","max_tokens":2,`+more+`}`); r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
			}
			g.WaitIdle()
			if after := predicted(); after > 1.01*before {
				t.Errorf("%.20s…%s: a first token in %.2f s; want %.2f s as before any answer", more, more[len(more)-12:], after, before)
			}
		})
	}
}
