package router_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/racetest"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// byPrefix is a policy that looks at prefixes for both roles.
func byPrefix(t testing.TB) *policies.Policy {
	t.Helper()
	by := policies.Role{Policy: "prefix"}
	p := routertest.Policy(t, policies.Choosing{Prefill: by, Decode: by})
	return p
}

// chat is the body of a conversation, each of whose turns is of about 1,000 bytes.
func chat(t *testing.T, turns ...string) string {
	t.Helper()
	messages := []map[string]string{}
	for _, turn := range turns {
		messages = append(messages, map[string]string{"role": "user", "content": strings.Repeat(turn+" ", 1000/(len(turn)+1))})
	}
	raw, err := json.Marshal(map[string]any{"model": "tiny", "max_tokens": 4, "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestConversationsStay: a conversation goes on with the engine that has it, whichever is next in turn, until that engine is another run
// or is not there any more. Others go elsewhere. In the end nobody has a backlog.
func TestConversationsStay(t *testing.T) {
	for _, connectorName := range []string{connector.NamePull, connector.NamePush, connector.NameNone} {
		routertest.RunVirtual(t, connectorName, func(t *testing.T) {
			s := routertest.NewPool(t, connectorName, 3, 3, nil)
			g := routertest.Start(t, s.Config, router.Parts{Planner: byPrefix(t)})
			if connectorName == connector.NamePush {
				g.WaitWarm()
			}
			n := 0
			ask := func(turns ...string) string {
				n++
				body := chat(t, turns...)
				at := g.Prefixed(n, body)
				g.WaitIdle()
				if decode := g.Summary(n).Decode; cachedOf(g, decode, body) == 0 {
					t.Fatalf("%s is thought to have nothing of what it was handed", decode)
				}
				for _, e := range g.Router.Debug().Engines() {
					if b := e.Backlog(); b != 0 {
						t.Fatalf("%s has %d tokens to compute when nothing is under way", e.Name(), b)
					}
				}
				return at
			}
			with := map[string]string{} // what its conversation begins with
			for i := 0; len(with) < 3 && i < 30; i++ {
				begins := fmt.Sprint("conversation ", i)
				with[ask(begins)] = begins
			}
			if len(with) != 3 {
				t.Fatalf("30 conversations are with %v; want all three engines", with)
			}
			names := slices.Sorted(maps.Keys(with))
			first, second := names[0], names[1]
			for i := range 4 {
				if got := ask(slices.Concat([]string{with[first]}, slices.Repeat([]string{"and"}, i+1))...); got != first {
					t.Errorf("turn %d of the first conversation is with %s; want %s", i+2, got, first)
				}
				if got := ask(with[second], "on"); got != second {
					t.Errorf("the second conversation is with %s; want %s", got, second)
				}
			}
			g.Router.Debug().Engine(first).Restarted()
			if connectorName == connector.NamePush {
				g.WaitWarm()
			}
			if got := cachedOf(g, first, chat(t, with[first])); got != 0 {
				t.Errorf("%s has %d tokens of what its run before was asked", first, got)
			}
			if got := cachedOf(g, second, chat(t, with[second])); got == 0 {
				t.Errorf("%s has nothing of what it was asked, as %s was started anew", second, first)
			}
			g.Router.Debug().Engine(second).Back(t.Context())
			if got := cachedOf(g, second, chat(t, with[second])); got != 0 {
				t.Errorf("%s has %d tokens of what it was asked before it was down", second, got)
			}
		})
	}
}

// cachedOf is how many tokens of a body's prompt an engine is thought to have.
func cachedOf(g *routertest.Gateway, name, raw string) int {
	g.T.Helper()
	n, err := g.Router.Debug().CachedTokens(name, raw)
	if err != nil {
		g.T.Fatal(err)
	}
	return n
}

// TestBacklog: a prompt counts with its engine from when it is sent until its first token is here, what the engine has of it less.
func TestBacklog(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Leg: "alone", Nth: 3, Do: routertest.DoLateToken, N: 1000}}})
		g := routertest.Start(t, s.Config, router.Parts{Planner: byPrefix(t)})
		e := g.Router.Debug().Engine("decode-0")
		body := chat(t, "one")
		for i, want := range []int64{257, 1} { // the second finds all, but the last token is always computed
			s.Decode[0].PauseFor(time.Second)
			done := make(chan routertest.Reply)
			go func() { done <- g.Post("/v1/chat/completions", body) }()
			routertest.Eventually(t, "the request is with the engine", func() bool { return e.InFlight() == 1 })
			if got := e.Backlog(); got != want {
				t.Errorf("request %d: %d tokens to compute; want %d", i, got, want)
			}
			if r := <-done; r.Status != 200 {
				t.Errorf("status %d", r.Status)
			}
			g.WaitIdle()
			if got := e.Backlog(); got != 0 {
				t.Errorf("request %d: %d tokens to compute when it is over", i, got)
			}
		}
		done := make(chan routertest.Reply)
		go func() {
			done <- g.Post("/v1/chat/completions", strings.Replace(body, `{`, `{"stream":true,`, 1))
		}()
		routertest.Eventually(t, "the request is with the engine", func() bool { return e.InFlight() == 1 })
		routertest.Eventually(t, "its first token is here, and not its last", func() bool { return e.Backlog() == 0 })
		if got := e.InFlight(); got != 1 {
			t.Errorf("%d in flight when the prompt is computed; want 1", got)
		}
		if r := <-done; r.Status != 200 {
			t.Errorf("status %d", r.Status)
		}
	})
}

// TestAllocationsByPrefix: looking for a prompt costs a request no allocation.
func TestAllocationsByPrefix(t *testing.T) {
	for _, c := range costs {
		if c.connector != connector.NamePull {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			ask := costClient(t, c.connector, c.stream, c.size, byPrefix(t))
			most := c.most
			if racetest.Enabled() {
				most = cost{c.raced, math.Inf(1)}
			}
			got := costOf(20, ask)
			for try := 1; try < 5 && !got.within(most); try++ {
				again := costOf(20, ask)
				got = cost{min(got.allocs, again.allocs), min(got.bytes, again.bytes)}
			}
			if !got.within(most) {
				t.Errorf("a request makes %.1f allocations of %.0f bytes, want at most %.0f of %.0f, as without", got.allocs, got.bytes, most.allocs, most.bytes)
			}
		})
	}
}

// TestShortPromptsStay: prompts of fewer than 512 bytes are asked of the engine that had their beginning.
func TestShortPromptsStay(t *testing.T) {
	routertest.RunVirtual(t, connector.NameNone, func(t *testing.T) {
		s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
		g := routertest.Start(t, s.Config, router.Parts{Planner: byPrefix(t)})
		n := 0
		ask := func(text string) string {
			n++
			at := g.Prefixed(n, fmt.Sprintf(`{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, text))
			g.WaitIdle()
			return at
		}
		with := map[string]string{} // the question that each engine was asked first
		for i := 0; len(with) < 3 && i < 30; i++ {
			question := fmt.Sprintf("%d. ", i) + strings.Repeat("Why? ", 30) // 153 bytes
			with[ask(question)] = question
		}
		if len(with) != 3 {
			t.Fatalf("30 questions are with %v; want all three engines", with)
		}
		for i := range 3 {
			for engine, question := range with {
				if got := ask(question + fmt.Sprint("And ", i, "?")); got != engine {
					t.Errorf("a question that %s has heard is with %s", engine, got)
				}
			}
		}
	})
}

// TestFailedLegsHaveNothing: an engine that has refused a request, or failed it before its first token, is not thought to have its prompt. What it had
// before it still has.
func TestFailedLegsHaveNothing(t *testing.T) {
	for _, row := range []struct {
		connector string
		fault     routertest.Fault // of the second request's legs
		has       map[string]bool  // which engines have the rest of its prompt
	}{
		{connector.NameNone, routertest.Fault{Leg: "alone", Do: routertest.DoReject}, map[string]bool{"decode-0": false}},
		{connector.NameNone, routertest.Fault{Leg: "alone", Do: routertest.DoError}, map[string]bool{"decode-0": false}},
		{connector.NameNone, routertest.Fault{Leg: "alone", Do: routertest.DoGarbage}, map[string]bool{"decode-0": false}},
		{connector.NamePull, routertest.Fault{Leg: "prefill", Do: routertest.DoReject}, map[string]bool{"prefill-0": false, "decode-0": false}},
		{connector.NamePull, routertest.Fault{Leg: "decode", Do: routertest.DoReject}, map[string]bool{"prefill-0": true, "decode-0": false}},
	} {
		routertest.Virtual(t, func(t *testing.T, _ *routertest.Network) {
			prefill := 1
			if row.connector == connector.NameNone {
				prefill = 0
			}
			none := 0
			s := routertest.NewPool(t, row.connector, prefill, 1, nil)
			s.Config.Limits.RetryPercent, s.Config.Limits.RetryFloor = &none, &none
			engine := "decode-0"
			if row.fault.Leg == "prefill" {
				engine = "prefill-0"
			}
			g := routertest.Start(t, s.Config, router.Parts{Planner: byPrefix(t)})
			first, second := chat(t, "one"), chat(t, "one", "two", "three")
			if r := g.Post("/v1/chat/completions", first); r.Status != 200 {
				t.Fatalf("the first request: %d %s", r.Status, r.Body)
			}
			g.WaitIdle()
			was := map[string]int{}
			for name := range row.has {
				if was[name] = cachedOf(g, name, second); was[name] == 0 {
					t.Fatalf("%s has nothing of the first request", name)
				}
			}
			s.SetFaults(map[string][]routertest.Fault{engine: {row.fault}})
			g.Post("/v1/chat/completions", second)
			g.WaitIdle()
			for name, want := range row.has {
				if got := cachedOf(g, name, second); got > was[name] != want || got < was[name] {
					t.Errorf("%s %s %s: %s has %d tokens, %d before; want more: %v", row.connector, row.fault.Leg, row.fault.Do, name, got, was[name], want)
				}
			}
		})
	}
}
