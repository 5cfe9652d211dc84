package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestHeldBlocksDecide: a conversation goes on with the engine that says that it has the prompt, not with the one that was asked it. What was
// predicted is reported beside what that engine has counted, and explained. With isolate_prefix_cache the salt is the one that engines get.
func TestHeldBlocksDecide(t *testing.T) {
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) {
			p := routertest.NewPool(t, connector.NamePull, 2, 1, nil)
			var ids []uint32
			for i := range 302 {
				ids = append(ids, uint32(i))
			}
			list, _ := json.Marshal(ids)
			for i, e := range p.Prefill {
				e.SetHabit(func(h *routertest.Habit) { h.IDs = string(list) })
				p.Config.Models[0].Prefill[i].KVEvents = config.KVEvents{Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 8+i)} // nobody listens: Holds says what they have
			}
			p.Config.IsolatePrefixCache = isolated
			g := routertest.Start(t, p.Config, router.Parts{Planner: byPrefix(t)})
			g.WaitWarm()
			first, other := g.Prefixed(1, chat(t, "one", "two")), "prefill-0"
			if s := g.Summary(1); s.CachedBy.String() != "estimate" || s.PredictedCachedTokens != 0 || s.CountedCachedTokens != 4 {
				t.Errorf("%d tokens by %q of a chat that nobody knows, %d counted; want 0 by estimate, 4 counted", s.PredictedCachedTokens, s.CachedBy, s.CountedCachedTokens)
			}
			if first == other {
				other = "prefill-1"
			}
			g.WaitIdle() // the ids are learned after the answer
			salt := ""
			if isolated {
				salt = strings.Trim(g.Router.Debug().Sealed(""), `"`)
			}
			g.Router.Debug().Holds(first, salt, nil)
			g.Router.Debug().Holds(other, salt, ids)
			next := chat(t, "one", "two", "three")
			code, e, text := explain(t, g, "/explain/v1/chat/completions", next)
			if code != 200 || e.Prefill != other {
				t.Fatalf("status %d: %s", code, text)
			}
			for _, x := range e.Stages[0].Engines {
				if want := map[bool]int{true: 300}[x.Engine == other]; x.Cached != want || x.CachedBy != "events" {
					t.Errorf("%s has %d tokens by %q; want %d by events", x.Engine, x.Cached, x.CachedBy, want)
				}
			}
			if got := g.Prefixed(2, next); got != other {
				t.Errorf("the conversation goes on with %s; want %s, which has it", got, other)
			}
			if s := g.Summary(2); s.CachedBy.String() != "events" || s.PredictedCachedTokens != 300 || s.CountedCachedTokens != 4 {
				t.Errorf("%d tokens by %q, %d counted; want 300 by events, 4 counted", s.PredictedCachedTokens, s.CachedBy, s.CountedCachedTokens)
			}
			if _, e, _ := explain(t, g, "/explain/v1/chat/completions", strings.Replace(next, "{", `{"cache_salt":"mine",`, 1)); e.Stages[0].Engines[0].Cached+e.Stages[0].Engines[1].Cached != 0 {
				t.Errorf("with another salt: %+v", e.Stages[0].Engines)
			}
		})
	}
}
