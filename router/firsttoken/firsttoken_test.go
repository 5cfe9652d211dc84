package firsttoken

import (
	"fmt"
	"math"
	"testing"

	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

func TestResultsHaveNames(t *testing.T) {
	for r := range Results {
		var back Result
		if err := back.UnmarshalText([]byte(r.String())); err != nil || back != r || r != None && r.String() == "" {
			t.Errorf("%d: %q, %v, %v", r, r, back, err)
		}
	}
	if new(Result).UnmarshalText([]byte("else")) == nil {
		t.Error("another name is read")
	}
}

func TestOfBody(t *testing.T) {
	for _, row := range []struct {
		more string
		want Result
	}{
		{``, Prefill}, {`,"temperature":0.7,"top_p":0.9,"top_k":5,"min_p":0.1,"logit_bias":{"1":2},"ignore_eos":true,"stop_token_ids":[3],"user":"u"`, Prefill},
		{`,"seed":null,"stop":null,"tools":null,"response_format":null,"logprobs":null,"n":1,"stop":[]`, Body}, // twice the same
		{`,"seed":null,"tools":null,"response_format":null,"logprobs":null,"n":1,"stop":[]`, Prefill},
		{`,"presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1.0,"skip_special_tokens":true`, Prefill},
		{`,"stream_options":{"include_usage":true}`, Prefill}, {`,"stream_options":{"continuous_usage_stats":true}`, Body},
		{`,"stream_options":{"continuous_usage_stats":1}`, Body}, {`,"stream_options":{"continuous_usage_stats":"yes"}`, Body},
		{`,"stream_options":{"continuous_usage_stats":false}`, Prefill}, {`,"stream_options":{"continuous_usage_stats":null}`, Prefill},
		{`,"seed":0`, Body}, {`,"stop":"a"`, Body}, {`,"stop":["a"]`, Body}, {`,"min_tokens":1`, Body}, {`,"presence_penalty":0.1`, Body}, {`,"frequency_penalty":1`, Body},
		{`,"repetition_penalty":1.05`, Body}, {`,"n":2`, Body}, {`,"best_of":2`, Body}, {`,"use_beam_search":true`, Body}, {`,"prompt_logprobs":1`, Body}, {`,"logprobs":1`, Body},
		{`,"response_format":{"type":"json_object"}`, Body}, {`,"structured_outputs":{}`, Body}, {`,"return_token_ids":true`, Body}, {`,"return_token_ids":false`, Body},
		{`,"skip_special_tokens":false`, Body}, {`,"spaces_between_special_tokens":false`, Body}, {`,"truncate_prompt_tokens":5`, Body}, {`,"bad_words":["a"]`, Body},
		{`,"logits_processors":["a"]`, Body}, {`,"vllm_xargs":{}`, Body}, {`,"a_member_of_tomorrow":1`, Body},
	} {
		for shape, begin := range map[openai.Shape]string{openai.ShapeCompletions: `{"model":"m","prompt":"a","stream":true`, openai.ShapeChat: `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true`} {
			b, herr := openai.ParseBody(shape, []byte(begin+row.more+"}"), openai.Limits{N: 9, Logprobs: 9})
			if herr != nil {
				if row.want != Body {
					t.Errorf("%v %s: %v", shape, row.more, herr)
				}
				continue
			}
			if _, got := OfBody(b); got != row.want {
				t.Errorf("%v %s: %v; want %v", shape, row.more, got, row.want)
			}
		}
	}
	for _, row := range []struct {
		shape openai.Shape
		body  string
		want  Result
		max   int
	}{
		{openai.ShapeCompletions, `{"prompt":"a"}`, NotStreamed, 0}, {openai.ShapeCompletions, `{"prompt":["a","b"],"stream":true}`, Body, 0},
		{openai.ShapeCompletions, `{"prompt":[1,2],"stream":true}`, Prefill, 16}, {openai.ShapeCompletions, `{"prompt":"a","stream":true,"max_tokens":null}`, Body, 0},
		{openai.ShapeCompletions, `{"prompt":"a","stream":true,"max_tokens":9}`, Prefill, 9}, {openai.ShapeCompletions, `{"prompt":"a","stream":true,"max_completion_tokens":9}`, Body, 0},
		{openai.ShapeCompletions, `{"prompt":"a","stream":true,"suffix":"b"}`, Body, 0}, {openai.ShapeCompletions, `{"prompt":"a","stream":true,"echo":true}`, Body, 0},
		{openai.ShapeChat, `{"messages":[],"stream":true}`, Prefill, -1}, {openai.ShapeChat, `{"messages":[],"stream":true,"max_tokens":9,"max_completion_tokens":7}`, Prefill, 7},
		{openai.ShapeChat, `{"messages":[],"stream":true,"tools":[{"type":"function","function":{"name":"f"}}]}`, Body, 0},
		{openai.ShapeChat, `{"messages":[],"stream":true,"return_prompt_text":true}`, Body, 0},
		{openai.ShapeChat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a"}}]}],"stream":true}`, Body, 0},
		{openai.ShapeResponses, `{"input":"a","stream":true}`, Body, 0}, {openai.ShapeMessages, `{"messages":[],"max_tokens":9,"stream":true}`, Body, 0},
	} {
		b, herr := openai.ParseBody(row.shape, []byte(row.body), openai.Limits{})
		if herr != nil {
			t.Errorf("%s: %v", row.body, herr)
			continue
		}
		if c, got := OfBody(b); got != row.want || got == Prefill && c.Max != row.max {
			t.Errorf("%s: %v, %d tokens; want %v, %d", row.body, got, c.Max, row.want, row.max)
		}
	}
}

// TestFit: decode never gets a prompt of more blocks than prefill has, nor one that ends with a block.
func TestFit(t *testing.T) {
	fits := 0
	for size := 1; size <= 33; size++ {
		for n := 1; n <= 200; n++ {
			blocks := (n + size - 1) / size
			p := Pair{Handed: connector.Handed{Tokens: n, Groups: 1, Blocks: blocks}, PrefillBlock: size, DecodeBlock: size, MaxLen: 1000}
			got := p.Fit(n)
			if ends := (n+1+size-1)/size > blocks || (n+1)%size == 0; (got == Prefill) == ends || got == Engines {
				t.Fatalf("%d tokens in blocks of %d: %v", n, size, got)
			}
			if got == Prefill {
				fits++
			}
		}
	}
	if fits == 0 {
		t.Error("none fits")
	}
	good := Pair{Handed: connector.Handed{Tokens: 40, Groups: 1, Blocks: 3}, PrefillBlock: 16, DecodeBlock: 16, MaxLen: 42}
	for _, most := range []int{-1, 2} {
		p := good
		if p.Max = most; p.Fit(40) != Prefill {
			t.Errorf("an answer of %d tokens: %v", most, p.Fit(40))
		}
	}
	if got := good.Fit(40); got != Prefill {
		t.Fatalf("a good one: %v", got)
	}
	for name, change := range map[string]func(*Pair){
		"another number of tokens": func(p *Pair) { p.Handed.Tokens = 39 }, "two groups": func(p *Pair) { p.Handed.Groups = 2 }, "a window": func(p *Pair) { p.Handed.Blocks = 2 },
		"a block more": func(p *Pair) { p.Handed.Blocks = 4 }, "nothing handed": func(p *Pair) { p.Handed = connector.Handed{} }, "prefill's block is unknown": func(p *Pair) { p.PrefillBlock = 0 },
		"decode's block is unknown": func(p *Pair) { p.DecodeBlock = 0 }, "other blocks": func(p *Pair) { p.DecodeBlock = 32 }, "no room": func(p *Pair) { p.MaxLen = 41 }, "room unknown": func(p *Pair) { p.MaxLen = 0 },
		"no room for the answer": func(p *Pair) { p.MaxLen, p.Max = 50, 11 }, "an answer of any length": func(p *Pair) { p.Max = math.MaxInt },
	} {
		p := good
		change(&p)
		if got := p.Fit(40); got != Engines {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestOfAnswer(t *testing.T) {
	answer := func(choice string) string {
		return `{"id":"cmpl-1","object":"o","created":7,"model":"m","choices":[` + choice + `],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2,"created_cache_tokens":null}}}`
	}
	choice := func(text string, more string) string {
		return fmt.Sprintf(`{"index":0,"text":%s,"message":{"role":"assistant","content":%s%s},"finish_reason":"length","token_ids":[9]}`, text, text, more)
	}
	for _, row := range []struct {
		name, answer, ids string
		want              Result
	}{
		{"text", answer(choice(`" a\u00e9"`, "")), `[1, 2,3]`, Prefill},
		{"no ids of the prompt", answer(choice(`"a"`, "")), ``, NoTokenIDs},
		{"no id of the token", answer(`{"text":"a","finish_reason":"length","token_ids":null}`), `[1,2,3]`, NoTokenIDs},
		{"two tokens", answer(`{"text":"a","finish_reason":"length","token_ids":[1,2]}`), `[1,2,3]`, NoTokenIDs},
		{"no choice", answer(``), `[1,2,3]`, NoTokenIDs},
		{"no id", `{"choices":[` + choice(`"a"`, "") + `]}`, `[1,2,3]`, NoTokenIDs},
		{"no text", answer(choice(`""`, "")), `[1,2,3]`, Text},
		{"null", answer(choice(`null`, "")), `[1,2,3]`, Text},
		{"a part of a character", answer(choice(`"\ufffd"`, "")), `[1,2,3]`, Text},
		{"one at the end", answer(choice(`"ab\ufffd"`, "")), `[1,2,3]`, Text},
		{"the end", answer(`{"text":"a","message":{"role":"assistant","content":"a"},"finish_reason":"stop","token_ids":[9]}`), `[1,2,3]`, Text},
		{"reasoning", answer(choice(`"a"`, `,"reasoning":"b"`)), `[1,2,3]`, Text},
		{"reasoning of older ones", answer(choice(`"a"`, `,"reasoning_content":""`)), `[1,2,3]`, Text},
		{"a refusal", answer(choice(`"a"`, `,"refusal":"b"`)), `[1,2,3]`, Text},
		{"a call", answer(choice(`"a"`, `,"tool_calls":[{}]`)), `[1,2,3]`, Text},
		{"none of these", answer(choice(`"a"`, `,"reasoning":null,"tool_calls":[],"refusal":null`)), `[1,2,3]`, Prefill},
	} {
		for _, chat := range []bool{false, true} {
			got, result := OfAnswer(chat, []byte(row.answer), []byte(row.ids))
			if result != row.want || (got != nil) != (row.want == Prefill) {
				t.Errorf("%s, chat %v: %v; want %v", row.name, chat, result, row.want)
			}
			if got != nil && (got.PromptTokens != 3 || string(got.Token) != "9" || string(got.ID) != `"cmpl-1"` || (string(got.Role) == `"assistant"`) != chat ||
				string(got.Details) != `,"prompt_tokens_details":{"cached_tokens":2}`) {
				t.Errorf("%s: %+v", row.name, got)
			}
		}
	}
	if got, _ := OfAnswer(true, []byte(answer(`{"message":{"content":"a"},"finish_reason":"length","token_ids":[9]}`)), []byte(`[1]`)); got != nil {
		t.Error("a chat without a role")
	}
}
