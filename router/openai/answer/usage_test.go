package answer

import (
	"strings"
	"testing"
)

func TestTellCached(t *testing.T) {
	tests := []struct {
		name, in string
		cached   int
		want     string
	}{
		{"none", `{"usage":{"prompt_tokens":7}}`, 4, `{"usage":{"prompt_tokens":7}}`},
		{"null", `{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":null}}}`, 4, `{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":null}}}`},
		{"completions", `{"usage":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":69, "x":1.50}},"seed":1e2}`, 4,
			`{"usage":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":4, "x":1.50}},"seed":1e2}`},
		{"longer", `{"usage":{"prompt_tokens":7000,"prompt_tokens_details":{"cached_tokens":0}},"a":[]}`, 4096, `{"usage":{"prompt_tokens":7000,"prompt_tokens_details":{"cached_tokens":4096}},"a":[]}`},
		{"not more than there is", `{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}`, 9, `{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":7}}}`},
		{"responses", `{"usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":69,"cached_tokens_per_turn":[69],"input_tokens_per_turn":[70]},"output_tokens":2}}`, 32,
			`{"usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":32,"cached_tokens_per_turn":[32],"input_tokens_per_turn":[70]},"output_tokens":2}}`},
		{"messages", `{"usage":{"input_tokens":1,"output_tokens":3,"cache_read_input_tokens":69}}`, 32, `{"usage":{"input_tokens":38,"output_tokens":3,"cache_read_input_tokens":32}}`},
		{"messages, reversed", `{"usage":{"cache_read_input_tokens":69,"input_tokens":1,"cache_creation_input_tokens":2}}`, 0,
			`{"usage":{"cache_read_input_tokens":0,"input_tokens":69,"cache_creation_input_tokens":3}}`},
		{"created", `{"usage":{"prompt_tokens":70,"prompt_tokens_details":{"created_cache_tokens":0,"cached_tokens":69}}}`, 64,
			`{"usage":{"prompt_tokens":70,"prompt_tokens_details":{"created_cache_tokens":3,"cached_tokens":64}}}`},
		{"created, of responses", `{"usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":69,"cache_write_tokens":0}}}`, 69,
			`{"usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":69,"cache_write_tokens":1}}}`},
		{"in the text", `{"choices":[{"text":"{\"cached_tokens\":1}","usage":{"prompt_tokens_details":{"cached_tokens":1}}}]}`, 9,
			`{"choices":[{"text":"{\"cached_tokens\":1}","usage":{"prompt_tokens_details":{"cached_tokens":1}}}]}`},
		{"broken", `{"usage":{"cached_tokens":`, 9, `{"usage":{"cached_tokens":`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(SetCached([]byte("xx"+tt.in), 2, tt.cached, 3)); got != "xx"+tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			for _, wrap := range []string{"data: @\n\n", "event: x\r\ndata:@\r\n\r\n: c\n\n"} {
				in, want := strings.Replace(wrap, "@", tt.in, 1), strings.Replace(wrap, "@", tt.want, 1)
				if got := string(SetCached([]byte("xx"+in), 2, tt.cached, 3)); got != "xx"+want {
					t.Errorf("event: got %s, want %s", got, want)
				}
			}
		})
	}
	in := "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":8}}}}\n\n"
	if got, want := string(SetCached([]byte(in), 0, 0, -1)), strings.Replace(in, ":8", ":0", 1); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUsageOfShapes(t *testing.T) {
	tests := []struct {
		name, in                   string
		prompt, cached, completion int
	}{
		{"responses", `{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":2}}`, 7, 4, 2},
		{"responses, event", `{"type":"response.completed","response":{"usage":{"input_tokens":7,"output_tokens":2}}}`, 7, 0, 2},
		{"messages", `{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":1,"output_tokens":2}}`, 8, 4, 2},
		{"messages, event", `{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":0}}}`, 7, 0, 0},
		{"params", `{"usage":{"prompt_tokens":7,"completion_tokens":1},"kv_transfer_params":{"remote_prefill_cached_tokens":5}}`, 7, 5, 1},
	}
	for _, tt := range tests {
		a, ok := Parse([]byte(tt.in))
		if !ok || a.PromptTokens != tt.prompt || a.Cached() != tt.cached || a.CompletionTokens != tt.completion {
			t.Errorf("%s: %v %d, %d, %d", tt.name, ok, a.PromptTokens, a.Cached(), a.CompletionTokens)
		}
	}
}
