package fleet

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/openai"
)

// noting is a fleet of engines a and b whose policy looks at prefixes.
type noting struct {
	t *testing.T
	f *Fleet
}

func newNoting(t *testing.T) noting {
	t.Helper()
	by := policies.Role{Policy: "prefix"}
	planner, err := policies.New(policies.Config{Default: policies.Choosing{Prefill: by, Decode: by}})
	if err != nil {
		t.Fatal(err)
	}
	return noting{t, fleetOf(t, ofEngines("a", "b"), Parts{Planner: planner}, nil)}
}

// chat is a body of these turns, the user's and the model's by turns.
func (n noting) chat(turns ...string) *openai.Body {
	n.t.Helper()
	var messages []map[string]string
	for i, turn := range turns {
		messages = append(messages, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": turn})
	}
	raw, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		n.t.Fatal(err)
	}
	b, bad := openai.ParseBody(openai.ShapeChat, raw, openai.Limits{})
	if bad != nil {
		n.t.Fatal(bad)
	}
	return b
}

// ask gives engine a a prompt, and returns what was predicted to be cached of it, and what became of that.
func (n noting) ask(b *openai.Body) (predicted int, noted *Noted) {
	var k Selection
	k.Init(n.f, n.f.Models["m"], b.Shape, nil, "", 0)
	k.FindPrompt(b, "")
	defer k.ForgetPrompt()
	predicted, _, _ = k.Predicted(policies.Choice{})
	_, _, noted = k.NotePrompt(policies.Choice{})
	return predicted, noted
}

// TestAnswersAreCached: the next turn finds the answer too, to the byte; an engine that counts otherwise again and again is believed, until it counts as
// it was predicted at first.
func TestAnswersAreCached(t *testing.T) {
	n := newNoting(t)
	answer := strings.Repeat("answer ", 100)
	turn := func(i int, keeps bool) (predicted, asked int) {
		one := strings.Repeat(string(rune('a'+i%26)), 1000+i)
		first, second := n.chat(one), n.chat(one, answer, "and")
		_, noted := n.ask(first)
		noted.Counted(len(first.Raw)/4, 0)
		noted.Answered(len(answer) / 4)
		noted.Release()
		predicted, noted = n.ask(second)
		counted := len(one) / 4
		if keeps {
			counted += len(answer) / 4
		}
		noted.Counted(len(second.Raw)/4, counted)
		noted.Release()
		return predicted, len(one) / 4
	}
	if got, asked := turn(0, true); got < asked+len(answer)/5 || got > asked+len(answer)/4+30 {
		t.Errorf("%d tokens are predicted; the prompt before had %d, its answer %d", got, asked, len(answer)/4)
	}
	for i := range 20 {
		turn(1+i, false)
	}
	if got, asked := turn(30, false); got < asked*9/10 || got > asked+30 {
		t.Errorf("%d tokens are predicted where answers change; the prompt before had %d", got, asked)
	}
	for i := range 30 {
		turn(40+i, true)
	}
	if got, asked := turn(100, true); got < asked+len(answer)/5 {
		t.Errorf("%d tokens are predicted where answers stay again; the prompt before had %d", got, asked)
	}
}

// TestTokensOfBytes: predictions are in the engine's tokens, as it counts them, in whole blocks and never all of the prompt.
func TestTokensOfBytes(t *testing.T) {
	n := newNoting(t)
	n.f.Engine("a").SetCacheSize(CacheSize{Blocks: 1000, BlockTokens: 16})
	b := n.chat(strings.Repeat("word ", 1000))
	bytes := len(b.Raw)
	for range 40 {
		_, noted := n.ask(b)
		noted.Counted(bytes, -1) // a token for each byte
		noted.Release()
	}
	if got, _ := n.ask(b); got%16 != 0 || got < bytes*9/10 || got >= bytes {
		t.Errorf("%d tokens are predicted; want whole blocks of nearly %d", got, bytes)
	}
}

// TestScaleIsBounded: no prompt teaches that tokens are hardly any, or no end of them, and prompts with media teach nothing.
func TestScaleIsBounded(t *testing.T) {
	n := newNoting(t)
	l := n.f.Models["m"].learned
	for _, row := range []struct {
		counted int
		want    float64
	}{{1 << 30, mostScale}, {1, 1. / mostScale}} {
		for i := range 100 {
			_, noted := n.ask(n.chat(strings.Repeat(string(rune('a'+i%26)), 4000)))
			noted.Counted(row.counted, -1)
			noted.Release()
		}
		if s := l.Scale(); math.Abs(s-row.want) > .05 {
			t.Errorf("%d tokens: a scale of %v; want %v", row.counted, s, row.want)
		}
	}
	was := l.Scale()
	raw := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("word ", 100) + `"},{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}]}`
	b, bad := openai.ParseBody(openai.ShapeChat, []byte(raw), openai.Limits{})
	if bad != nil {
		t.Fatal(bad)
	}
	_, noted := n.ask(b)
	noted.Counted(5000, -1)
	if got := l.Scale(); got != was {
		t.Errorf("a prompt with an image has changed the scale from %v to %v", was, got)
	}
}

// TestCapacityOfEngine: an engine that has said how large its cache is has no more than that; one with another cache has nothing at first.
func TestCapacityOfEngine(t *testing.T) {
	n := newNoting(t)
	a := n.f.Engine("a")
	a.SetCacheSize(CacheSize{Blocks: 100, BlockTokens: 16})
	old := n.chat(strings.Repeat("old ", 1000))
	n.ask(old)
	if got, _ := n.ask(old); got == 0 {
		t.Fatal("it has nothing of what it was asked")
	}
	n.ask(n.chat(strings.Repeat("new ", 1500)))
	if got, _ := n.ask(old); got > 600 {
		t.Errorf("%d tokens are predicted of 1,000 that were asked before 1,500 others; there is room for 1,600", got)
	}
	a.SetCacheSize(CacheSize{Blocks: 200, BlockTokens: 16})
	if got, _ := n.ask(old); got != 0 {
		t.Errorf("%d tokens are predicted of another cache", got)
	}
	a.SetCacheSize(CacheSize{})
	n.ask(old)
	n.ask(n.chat(strings.Repeat("more ", 20_000)))
	if got, _ := n.ask(old); got == 0 {
		t.Error("an engine that says nothing of its cache has lost something")
	}
}

// TestHandedPrompts: a decode engine has a prompt that it is handed from its first token on. Until then it keeps room for it.
func TestHandedPrompts(t *testing.T) {
	n := newNoting(t)
	both := config.Model{Name: "m", Prefill: []config.Engine{{Name: "p", URL: "http://127.0.0.1:1/p"}}, Decode: []config.Engine{{Name: "d", URL: "http://127.0.0.1:1/d"}}}
	by := policies.Role{Policy: "prefix"}
	planner, err := policies.New(policies.Config{Default: policies.Choosing{Prefill: by, Decode: by}})
	if err != nil {
		t.Fatal(err)
	}
	n.f = fleetOf(t, config.Config{Models: []config.Model{both}}, Parts{Planner: planner}, nil)
	ask := func(b *openai.Body) (has map[string]int, noted *Noted) {
		var k Selection
		k.Init(n.f, n.f.Models["m"], b.Shape, nil, "", 0)
		k.FindPrompt(b, "")
		defer k.ForgetPrompt()
		has = map[string]int{"p": k.Cached(n.f.Engine("p")), "d": k.Cached(n.f.Engine("d"))}
		_, _, noted = k.NotePrompt(policies.Choice{Split: true})
		return has, noted
	}
	n.f.Engine("d").SetCacheSize(CacheSize{Blocks: 100, BlockTokens: 16})
	first, second := n.chat(strings.Repeat("first ", 600)), n.chat(strings.Repeat("second ", 600)) // each of about 1,000 tokens
	_, one := ask(first)
	if has, other := ask(first); has["p"] == 0 || has["d"] > 0 {
		t.Errorf("before it came %v; want it on prefill alone", has)
	} else {
		other.Failed(Decode)
		other.Release()
	}
	one.Arrived()
	one.Arrived()
	has, two := ask(second)
	if two.Release(); has["d"] > 100 {
		t.Errorf("of another prompt %v", has)
	}
	has, three := ask(first)
	if three.Arrived(); has["d"] > 700 {
		t.Errorf("%v; want room to be kept for the second prompt", has)
	}
	if has, _ := ask(first); has["d"] < 800 {
		t.Errorf("%v; want nearly all on decode", has)
	}
}
