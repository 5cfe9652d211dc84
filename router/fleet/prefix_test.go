package fleet

import (
	"strings"
	"testing"

	"pdrouter/policies/prefixes"
	"pdrouter/router/openai"
)

// TestPromptsOfShapes: of every shape the prompt is looked for, what stands before it first; of two tenants' bodies nothing is the same,
// nor of two models' or salts.
func TestPromptsOfShapes(t *testing.T) {
	x := prefixes.New(1000)
	long := strings.Repeat("word ", 500)
	tail := strings.Repeat("more ", 500)
	chain := func(s openai.Shape, raw, sealed string) []uint64 {
		b, herr := openai.ParseBody(s, []byte(raw), openai.Limits{})
		if herr != nil {
			t.Fatalf("%s: %v", raw, herr)
		}
		b.Sealed = sealed
		p := new(prompt)
		p.read(x, b)
		return p.chain
	}
	same := func(a, b []uint64) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	ids := "[" + strings.Repeat("1234,", 499) + "1234]"
	for _, tt := range []struct {
		s                openai.Shape
		one, two, before string // two goes on with one; before has something else first
	}{
		{openai.ShapeChat, `"messages":[{"role":"user","content":"` + long + `"}]`, `"messages":[{"role":"user","content":"` + long + tail + `"}]`, `"messages":[{"role":"user","content":"` + long + `"}],"tools":[{"type":"function"}]`},
		{openai.ShapeCompletions, `"prompt":"` + long + `"`, `"prompt":"` + long + tail + `"`, `"prompt":"` + tail + long + `"`},
		{openai.ShapeCompletions, `"prompt":` + ids, `"prompt":` + ids[:len(ids)-1] + `,5]`, `"prompt":[1,` + ids[1:]},
		{openai.ShapeResponses, `"input":"` + long + `","instructions":"a"`, `"instructions":"a","input":"` + long + tail + `"`, `"input":"` + long + `","instructions":"b"`},
		{openai.ShapeMessages, `"max_tokens":9,"system":"a","messages":[{"role":"user","content":"` + long + `"}]`, `"max_tokens":9,"messages":[{"role":"user","content":"` + long + tail + `"}],"system":"a"`, `"max_tokens":9,"system":"b","messages":[{"role":"user","content":"` + long + `"}]`},
		{openai.ShapeGenerate, `"sampling_params":{"max_tokens":9},"token_ids":` + ids, `"sampling_params":{"max_tokens":9},"token_ids":` + ids[:len(ids)-1] + `,5]`, `"sampling_params":{"max_tokens":9},"token_ids":[1,` + ids[1:]},
	} {
		one := chain(tt.s, `{"model":"m",`+tt.one+`}`, "")
		if n := same(chain(tt.s, `{"model":"m",`+tt.one+`}`, `"a"`), chain(tt.s, `{"model":"m",`+tt.one+`}`, `"b"`)); n != 0 {
			t.Errorf("%s: of two tenants %d pieces are the same; want none", tt.s, n)
		}
		if len(one) != 11 || same(one, chain(tt.s, `{"stream":true,`+tt.two+`,"model":"m"}`, "")) != 11 {
			t.Errorf("%s: %d pieces; want 11, which the second has too", tt.s, len(one))
		}
		for what, other := range map[string][]uint64{
			"something else before": chain(tt.s, `{"model":"m",`+tt.before+`}`, ""), "another model": chain(tt.s, `{"model":"m2",`+tt.one+`}`, ""),
			"a tenant": chain(tt.s, `{"model":"m",`+tt.one+`}`, `"a"`), "a salt": chain(tt.s, `{"model":"m","cache_salt":"s",`+tt.one+`}`, ""),
		} {
			if n := same(one, other); n != 0 {
				t.Errorf("%s: with %s %d pieces are the same; want none", tt.s, what, n)
			}
		}
	}
}

// TestToolsAreOfThePrompt: what stands in tools is computed as well, and found.
func TestToolsAreOfThePrompt(t *testing.T) {
	raw := `{"model":"m","messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"f","description":"` + strings.Repeat("word ", 8000) + `"}}]}`
	b, herr := openai.ParseBody(openai.ShapeChat, []byte(raw), openai.Limits{})
	if herr != nil {
		t.Fatal(herr)
	}
	p := new(prompt)
	if p.read(prefixes.New(1000), b); p.tokens < 10_000 || p.tokens > 10_100 {
		t.Errorf("%d tokens; want 10,000 of the tools and few more", p.tokens)
	}
}
