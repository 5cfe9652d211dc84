package router_test

import (
	"fmt"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestSessionsStay: requests that name one session are served by the same engines, whatever names it; others take turns.
func TestSessionsStay(t *testing.T) {
	by := policies.Role{Policy: "session"}
	p := routertest.Policy(t, policies.Choosing{Prefill: by, Decode: by})
	for _, connectorName := range []string{connector.NamePull, connector.NameNone} {
		routertest.RunVirtual(t, connectorName, func(t *testing.T) {
			s := routertest.NewPool(t, connectorName, 3, 3, nil)
			g := routertest.Start(t, s.Config, router.Parts{Planner: p})
			if connectorName == connector.NamePull {
				g.WaitWarm() // else the choice is among the pairs that are warm
			}
			n := 0
			ask := func(body string, header ...string) string {
				t.Helper()
				if r := g.Post("/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":4`+body+`}`, header...); r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				g.WaitIdle()
				n++
				sum := g.Summary(n)
				return sum.Prefill + " " + sum.Decode
			}
			names := map[string]func(i int) string{
				"X-Session-Id":             func(i int) string { return ask("", "X-Session-Id", fmt.Sprint(i)) },
				"X-Claude-Code-Session-Id": func(i int) string { return ask("", "X-Claude-Code-Session-Id", fmt.Sprint(i)) },
				"prompt_cache_key":         func(i int) string { return ask(fmt.Sprintf(`,"prompt_cache_key":"%d","user":"one"`, i)) },
				"user before the key":      func(i int) string { return ask(fmt.Sprintf(`,"user":"one","prompt_cache_key":"%d"`, i)) },
				"user":                     func(i int) string { return ask(fmt.Sprintf(`,"user":"%d"`, i)) },
				"a header before the body": func(i int) string { return ask(`,"user":"one"`, "Session_id", fmt.Sprint(i)) },
			}
			for name, of := range names {
				seen := map[string]bool{}
				for i := range 12 {
					home := of(i)
					for range 2 {
						if got := of(i); got != home {
							t.Errorf("%s: session %d was served by %s, then by %s", name, i, home, got)
						}
					}
					seen[home] = true
				}
				if len(seen) < 2 {
					t.Errorf("%s: 12 sessions are all served by %v", name, seen)
				}
			}
			seen := map[string]bool{}
			for range 6 {
				seen[ask(`,"user":"","prompt_cache_key":""`)] = true // names nothing
			}
			if len(seen) < 3 {
				t.Errorf("requests without a session are served by %v; want them to take turns", seen)
			}
		})
	}
}
