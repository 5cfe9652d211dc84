package relay

import (
	"testing"

	"pdrouter/router/firsttoken"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// TestBeginFirst joins prefill's token and decode's stream.
func TestBeginFirst(t *testing.T) {
	token := firsttoken.Token{ID: []byte(`"id-1"`), Created: []byte(`7`), Model: []byte(`"m"`), Text: []byte(`" a"`), Role: []byte(`"assistant"`), Prompt: []byte("1,2,3"), PromptTokens: 3,
		Token: []byte("9"), Details: []byte(`,"prompt_tokens_details":{"cached_tokens":2}`)}
	decode := []string{
		`data: {"id":"id-1","object":"text_completion","created":8,"model":"m","choices":[{"index":0,"text":" b","logprobs":null,"finish_reason":null}]}`,
		`data: {"id":"id-1","object":"text_completion","created":8,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":5}]}`,
		`data: {"id":"id-1","created":8,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`,
		`data: [DONE]`,
	}
	for _, row := range []struct{ name, body, asked, want string }{
		{"a completion", `{"prompt":"p","stream":true,"max_tokens":5,"temperature":0}`,
			`{"temperature":0,"kv_transfer_params":{},"prompt":[1,2,3,9],"stream":true,"stream_options":{"include_usage":true},"max_tokens":4}`,
			`data: {"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null}]}` + "\n\n" +
				`data: {"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":" b","logprobs":null,"finish_reason":null,"stop_reason":null}]}` + "\n\n" +
				`data: {"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":5}]}` + "\n\n" +
				"data: [DONE]\n\n"},
		{"a chat with usage", `{"messages":[],"stream":true,"stream_options":{"include_usage":true}}`,
			`{"kv_transfer_params":{},"prompt":[1,2,3,9],"stream":true,"stream_options":{"include_usage":true},"max_tokens":96}`,
			`data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n" +
				`data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]}` + "\n\n" +
				`data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":" b"},"logprobs":null,"finish_reason":null}]}` + "\n\n" +
				`data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":5}]}` + "\n\n" +
				`data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":3,"total_tokens":6,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}` + "\n\n" +
				"data: [DONE]\n\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			shape := openai.ShapeCompletions
			if row.body[2] == 'm' {
				shape = openai.ShapeChat
			}
			b, herr := openai.ParseBody(shape, []byte(row.body), openai.Limits{})
			if herr != nil {
				t.Fatal(herr)
			}
			c, ok := openai.ContinuationOf(b)
			if !ok {
				t.Fatal("it cannot be continued")
			}
			var streams Streams
			var u Usage
			l := &leg.Leg{Engine: &fleet.Engine{}}
			s, o := streams.New(l, nil, shape, 1<<20, &u), NewContinuation(c, shape == openai.ShapeChat, false)
			s.BeginFirst(o, &token)
			o.Bound(100)
			if got := string(o.Body(nil, nil, nil, []byte(`"kv_transfer_params":{}`))); got != row.asked {
				t.Errorf("decode is asked for\n%s\nwant\n%s", got, row.asked)
			}
			got := string(s.TakeOut())
			s.Reuse()
			next := streams.New(l, nil, shape, 1<<20, &u)
			frames := next.Enter()
			for _, event := range decode {
				if err := frames.Push([]byte(event + "\n\n")); err != nil {
					t.Fatal(err)
				}
			}
			first, _ := frames.Next()
			next.Hold(nil, first)
			if !s.Resume(next) {
				t.Fatal("it does not go on")
			}
			if got += string(s.TakeOut()); got != row.want {
				t.Errorf("the client gets\n%s\nwant\n%s", got, row.want)
			}
			if !s.Whole() || u.Prompt != 3 || u.Output != 3 || u.Held != 4 || u.Pieces != 3 {
				t.Errorf("%v %+v", s.Whole(), u)
			}
			s.Break(reason.DecodeFailed)
			if r, why := s.Remedy(); r != RemedyCut || why != "" {
				t.Errorf("what breaks off is not cut: %v %q", r, why)
			}
			s.Free()
		})
	}
}
