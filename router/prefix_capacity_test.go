package router_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestPrefixesAsEnginesHaveThem: on conversations of which the engines' caches hold a part alone, the tokens that are predicted to be cached
// are those that the engines count, within a tenth, where the engines say how large their caches are.
func TestPrefixesAsEnginesHaveThem(t *testing.T) {
	for _, name := range []string{connector.NameNone, connector.NamePull} {
		t.Run(name, func(t *testing.T) { prefixesAsEnginesHaveThem(t, name) })
	}
}

func prefixesAsEnginesHaveThem(t *testing.T, connectorName string) {
	const blocks, blockTokens, conversations = 128, 16, 12
	m, pull := config.Model{Name: "reference", Connector: connectorName}, new(refengine.Pull)
	var names []string
	engine := func(name string, times int) config.Engine {
		names = append(names, name)
		return config.Engine{Name: name, URL: "http://" + refenginetest.Start(t, refengine.Config{Name: name, PrefixCache: true, Pull: pull,
			Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2}, Blocks: times * blocks, BlockTokens: blockTokens, MaxModelLen: blocks * blockTokens})}
	}
	if connectorName == connector.NameNone {
		m.Engines = []config.Engine{engine("e0", 1), engine("e1", 1)}
	} else {
		m.Prefill, m.Decode = []config.Engine{engine("p0", 1), engine("p1", 1)}, []config.Engine{engine("d0", 2)}
	}
	g := routertest.Start(t, config.Config{Models: []config.Model{m}}, router.Parts{Planner: byPrefix(t)})
	routertest.Eventually(t, "the engines have said how large their caches are", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { return g.Router.Debug().Engine(name).CacheTokens() < blocks*blockTokens })
	})
	rng := rand.New(rand.NewPCG(1, 1))
	text := func(n int) string {
		var b strings.Builder
		for b.Len() < n {
			fmt.Fprintf(&b, "%x ", rng.Uint64())
		}
		return b.String()[:n]
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	system := text(300)
	begun := func() []message { return []message{{"system", system}} }
	turns, asked := make([][]message, conversations), 0
	for i := range turns {
		turns[i] = begun()
	}
	var counted, predicted, wrong, prompts int
	for range 150 {
		at := rng.IntN(conversations)
		if rng.IntN(4) > 0 { // some go on more often than others
			at = rng.IntN(conversations / 3)
		}
		messages := append(turns[at], message{"user", text(60 + rng.IntN(300))})
		answer := 40 + rng.IntN(120)
		raw, err := json.Marshal(map[string]any{"model": "reference", "messages": messages, "max_tokens": answer, "min_tokens": answer, "ignore_eos": true})
		if err != nil {
			t.Fatal(err)
		}
		reply := g.Post("/v1/chat/completions", string(raw))
		var said struct{ Choices []struct{ Message message } }
		if err := json.Unmarshal([]byte(reply.Body), &said); err != nil || reply.Status != http.StatusOK || len(said.Choices) != 1 {
			t.Fatalf("%d %s: %v", reply.Status, reply.Body, err)
		}
		asked++
		s := g.Summary(asked)
		counted += int(s.CountedCachedTokens)
		predicted += int(s.PredictedCachedTokens)
		wrong += max(int(s.PredictedCachedTokens-s.CountedCachedTokens), int(s.CountedCachedTokens-s.PredictedCachedTokens))
		prompts += int(s.PromptTokens)
		if turns[at] = append(messages, said.Choices[0].Message); len(raw) > blocks*blockTokens/2 {
			turns[at] = begun()
		}
	}
	t.Logf("of %d prompt tokens %d were cached, %d predicted; %d wrongly", prompts, counted, predicted, wrong)
	if 10*wrong > counted {
		t.Errorf("%d tokens were predicted wrongly; want at most a tenth of %d", wrong, counted)
	}
}
