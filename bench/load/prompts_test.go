package load

import (
	"bytes"
	"encoding/json"
	"testing"

	"pdrouter/bench/fake"
	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
)

// TestPrompts: equal ids are equal text, other ids other text, and a prompt has its tokens' length.
func TestPrompts(t *testing.T) {
	k := WordTokens()
	one, two := k.prompt([]int{0, 1, 2}, 1030), k.prompt([]int{0, 1, 3}, 1536)
	if len(one) != 1030*4 || len(two) != 1536*4 {
		t.Errorf("%d and %d bytes", len(one), len(two))
	}
	if !bytes.Equal(one[:1024*4], two[:1024*4]) || bytes.Equal(one[1024*4:], two[1024*4:1030*4]) {
		t.Error("the first two blocks are to be equal, and nothing of the third")
	}
	if !bytes.Equal(one, k.prompt([]int{0, 1, 2}, 1030)) {
		t.Error("a prompt is another one the second time")
	}
	if words := bytes.Fields(one); len(words) != 1030 || len(words[1029]) != 3 {
		t.Errorf("%d words", len(words))
	}
	if quoted, err := json.Marshal(string(one)); err != nil || len(quoted) != len(one)+2 {
		t.Errorf("the text needs escapes: %v", err)
	}
	if got := byteTokens().prompt([]int{0}, 3); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// byteTokens is the reference engine's: a byte each, and the template of a chat with one turn.
func byteTokens() tokenizer { return tokenizer{bytes: 1, head: 10, tail: 15} }

// TestPromptsOfTheReferenceEngine: it counts the tokens that the trace says, answers with as many as asked for, and finds a prefix
// again as far as the ids are equal.
func TestPromptsOfTheReferenceEngine(t *testing.T) {
	engine := refenginetest.Start(t, refengine.Config{PrefixCache: true, Model: fake.Model})
	trace := []Request{{0, 600, 3, []int{0, 1}}, {0, 1100, 5, []int{0, 1, 2}}}
	for i, a := range byteTokens().Arrivals(trace, fake.Model) {
		got, err := OpenLoop(t.Context(), engine, []Arrival{a})
		if err != nil {
			t.Fatal(err)
		}
		if o := got[0]; o.Fault() != nil || o.usage.Prompt != trace[i].Input || o.Counted != trace[i].Output || len(o.Chunks) != o.Counted {
			t.Errorf("%v: %+v", o.Fault(), o)
		}
		if cached := got[0].usage.Details.Cached; i == 1 && cached != 576 { // blocks of 16 tokens of 600, less the template's 15
			t.Errorf("%d tokens of the second prompt were there; want 576", cached)
		}
	}
}
