package router

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/reason"
)

// TestShapeFields reads of each of the newer shapes what routing needs.
func TestShapeFields(t *testing.T) {
	type fields struct {
		N, Max, Bytes, IDs int
		Why                string
	}
	const generate = `{"token_ids":[1,2,3],"sampling_params":`
	tests := []struct {
		name  string
		shape shape
		in    string
		want  fields
	}{
		{"responses", shapeResponses, `{"input":"abcd","instructions":"ef","max_output_tokens":9,"n":2}`, fields{N: 1, Max: 9, Bytes: 10}},
		{"responses, items", shapeResponses, `{"input":[{"content":"ab"}]}`, fields{N: 1, Max: -1, Bytes: 18}},
		{"responses, one token", shapeResponses, `{"max_output_tokens":1}`, fields{N: 1, Max: 1, Why: unsplitOneToken}},
		{"responses, limits of others", shapeResponses, `{"max_tokens":1}`, fields{N: 1, Max: -1}},
		{"responses, background", shapeResponses, `{"background":true}`, fields{N: 1, Max: -1, Why: unsplitBackground}},
		{"responses, no background", shapeResponses, `{"background":false,"store":true}`, fields{N: 1, Max: -1}},
		{"responses, previous", shapeResponses, `{"previous_response_id":"resp_1"}`, fields{N: 1, Max: -1, Why: unsplitPrevious}},
		{"responses, no previous", shapeResponses, `{"previous_response_id":null}`, fields{N: 1, Max: -1}},
		{"responses, functions", shapeResponses, `{"tools":[{"type":"function","name":"f"},{"name":"g","type":"custom"}]}`, fields{N: 1, Max: -1}},
		{"responses, web search", shapeResponses, `{"tools":[{"type":"function"},{"type":"web_search_preview"}]}`, fields{N: 1, Max: -1, Why: unsplitServerTools}},
		{"responses, mcp", shapeResponses, `{"tools":[{"server_label":"x","type":"mcp"}]}`, fields{N: 1, Max: -1, Why: unsplitServerTools}},
		{"responses, truncation", shapeResponses, `{"truncation":"auto"}`, fields{N: 1, Max: -1, Why: unsplitTruncation}},
		{"responses, null truncation", shapeResponses, `{"truncation":null}`, fields{N: 1, Max: -1, Why: unsplitTruncation}},
		{"responses, no truncation", shapeResponses, `{"truncation":"disabled"}`, fields{N: 1, Max: -1}},
		{"chat, truncation to what fits", shapeChat, `{"truncate_prompt_tokens":-1}`, fields{N: 1, Max: -1, Why: unsplitTruncation}},
		{"chat, truncation to a length", shapeChat, `{"truncate_prompt_tokens":100}`, fields{N: 1, Max: -1}},
		{"messages", shapeMessages, `{"system":"ab","messages":[{}],"max_tokens":5,"thinking":{"type":"enabled","budget_tokens":4}}`, fields{N: 1, Max: 5, Bytes: 8}},
		{"messages, one token", shapeMessages, `{"max_tokens":1}`, fields{N: 1, Max: 1, Why: unsplitOneToken}},
		{"generate", shapeGenerate, generate + `{"max_tokens":7}}`, fields{N: 1, Max: 7, IDs: 3}},
		{"generate, no limit", shapeGenerate, generate + `{}}`, fields{N: 1, Max: -1, IDs: 3}},
		{"generate, outer limit", shapeGenerate, `{"max_tokens":1,"token_ids":[1]}`, fields{N: 1, Max: -1, IDs: 1}},
		{"generate, n", shapeGenerate, generate + `{"n":2}}`, fields{N: 2, Max: -1, IDs: 3, Why: unsplitN}},
		{"generate, prompt_logprobs", shapeGenerate, generate + `{"prompt_logprobs":1}}`, fields{N: 1, Max: -1, IDs: 3, Why: unsplitLogprobs}},
		{"generate, one token", shapeGenerate, generate + `{"max_tokens":1}}`, fields{N: 1, Max: 1, IDs: 3, Why: unsplitOneToken}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, herr := parseBody(tt.shape, []byte(tt.in), bodyLimits{})
			if herr != nil {
				t.Fatal(herr)
			}
			if diff := cmp.Diff(tt.want, fields{b.n, b.maxTokens, b.promptBytes, b.promptIDs, b.unsplittable}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestShapeRefusals(t *testing.T) {
	lim := bodyLimits{N: 4, Prompts: 3, Stop: 2, Logprobs: 5, Strict: true}
	tests := []struct {
		name   string
		shape  shape
		in     string
		reason reason.Reason
		param  string
	}{
		{"limit", shapeResponses, `{"max_output_tokens":-1}`, reason.BadField, "max_output_tokens"},
		{"background", shapeResponses, `{"background":1}`, reason.BadField, "background"},
		{"previous", shapeResponses, `{"previous_response_id":1}`, reason.BadField, "previous_response_id"},
		{"top_logprobs", shapeResponses, `{"top_logprobs":6}`, reason.OverCap, "top_logprobs"},
		{"messages", shapeMessages, `{"messages":"x"}`, reason.BadField, "messages"},
		{"stop_sequences", shapeMessages, `{"stop_sequences":["a","b","c"]}`, reason.OverCap, "stop_sequences"},
		{"salt", shapeMessages, `{"cache_salt":1}`, reason.BadField, "cache_salt"},
		{"tokens", shapeGenerate, `{"token_ids":"x"}`, reason.BadField, "token_ids"},
		{"no tokens", shapeGenerate, `{"token_ids":[]}`, reason.BadField, "token_ids"},
		{"negative token", shapeGenerate, `{"token_ids":[-1]}`, reason.BadField, "token_ids"},
		{"sampling_params", shapeGenerate, `{"sampling_params":null}`, reason.BadField, "sampling_params"},
		{"n", shapeGenerate, `{"sampling_params":{"n":5}}`, reason.OverCap, "sampling_params.n"},
		{"inner limit", shapeGenerate, `{"sampling_params":{"max_tokens":-1}}`, reason.BadField, "sampling_params.max_tokens"},
		{"inner logprobs", shapeGenerate, `{"sampling_params":{"logprobs":-1}}`, reason.OverCap, "sampling_params.logprobs"},
		{"inner stop", shapeGenerate, `{"sampling_params":{"stop":["a","b","c"]}}`, reason.OverCap, "sampling_params.stop"},
		{"stream_options", shapeGenerate, `{"stream_options":{}}`, reason.BadField, "stream_options"},
		{"transfer", shapeResponses, `{"ec_transfer_params":{}}`, reason.TransferParams, "ec_transfer_params"},
		{"transfer within", shapeGenerate, `{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}`, reason.TransferParams, "sampling_params.extra_args.kv_transfer_params"},
		{"batch", shapeBatch, `{"messages":[[{}],[{}],[{}],[{}]]}`, reason.OverCap, "messages"},
		{"batch, none", shapeBatch, `{"messages":"x"}`, reason.BadField, "messages"},
		{"batch, n", shapeBatch, `{"messages":[[{}]],"n":5}`, reason.OverCap, "n"},
		{"batch, stop", shapeBatch, `{"messages":[[{}]],"stop":["a","b","c"]}`, reason.OverCap, "stop"},
		{"batch, top_logprobs", shapeBatch, `{"messages":[[{}]],"top_logprobs":6}`, reason.OverCap, "top_logprobs"},
		{"batch, limit", shapeBatch, `{"messages":[[{}]],"max_tokens":-5}`, reason.BadField, "max_tokens"},
		{"logprobs of tokens", shapeChat, `{"logprob_token_ids":[1,2,3,4,5,6]}`, reason.OverCap, "logprob_token_ids"},
		{"inner logprobs of tokens", shapeGenerate, `{"sampling_params":{"logprob_token_ids":[1,2,3,4,5,6]}}`, reason.OverCap, "sampling_params.logprob_token_ids"},
		{"priority", shapeMessages, `{"priority":"high"}`, reason.BadField, "priority"},
		{"rank", shapeChat, `{"data_parallel_rank":1}`, reason.TransferParams, "data_parallel_rank"},
		{"same key in sampling_params", shapeGenerate, `{"sampling_params":{"n":1,"n":1}}`, reason.DuplicateKey, ""},
		{"too deep in sampling_params", shapeGenerate, `{"sampling_params":{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}}`, reason.BadJSON, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, herr := parseBody(tt.shape, []byte(tt.in), lim)
			if herr == nil {
				t.Fatal("accepted")
			}
			if herr.Status != 400 || herr.Reason != tt.reason || herr.Param != tt.param {
				t.Errorf("got %d %s %q (%s), want 400 %s %q", herr.Status, herr.Reason, herr.Param, herr.Msg, tt.reason, tt.param)
			}
		})
	}
}

// TestShapeLegs compares the bodies of both legs to the byte.
func TestShapeLegs(t *testing.T) {
	tests := []struct {
		name            string
		shape           shape
		in              string
		prefill, decode string
	}{
		{"responses", shapeResponses, `{"input":"x","max_output_tokens":9,"stream":true,"store":true,"request_id":"mine","seed":9223372036854775807}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","input":"x","max_output_tokens":1,"stream":false,"store":false,"seed":9223372036854775807}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","input":"x","max_output_tokens":9,"stream":true,"store":true,"seed":9223372036854775807}`},
		{"responses, nothing said", shapeResponses, `{"input":"x","stream_options":{"include_obfuscation":false},"max_tokens":5}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","max_output_tokens":1,"store":false,"input":"x","max_tokens":5}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","input":"x","stream_options":{"include_obfuscation":false},"max_tokens":5}`},
		{"messages", shapeMessages, `{"max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":2048},"stream":true,"request_id":"x"}`,
			`{"kv_transfer_params":KV,"max_tokens":1,"thinking":{"type":"enabled","budget_tokens":2048},"stream":false}`,
			`{"kv_transfer_params":KV,"max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":2048},"stream":true}`},
		{"generate", shapeGenerate, `{"token_ids":[1,2],"sampling_params":{"min_tokens":3, "max_tokens":9,"seed":18446744073709551615,"extra_args":{"kv_transfer_params":1}},"stream":true}`,
			`{"kv_transfer_params":KV,"token_ids":[1,2],"sampling_params":{ "max_tokens":1,"seed":18446744073709551615,"extra_args":{}},"stream":false}`,
			`{"kv_transfer_params":KV,"token_ids":[1,2],"sampling_params":{"min_tokens":3, "max_tokens":9,"seed":18446744073709551615,"extra_args":{}},"stream":true}`},
		{"generate, no limit", shapeGenerate, `{"sampling_params":{"min_tokens":3,"top_k":4},"max_tokens":7}`,
			`{"kv_transfer_params":KV,"sampling_params":{"max_tokens":1,"top_k":4},"max_tokens":7}`,
			`{"kv_transfer_params":KV,"sampling_params":{"min_tokens":3,"top_k":4},"max_tokens":7}`},
		{"generate, nothing left within", shapeGenerate, `{"sampling_params": {"min_tokens":3} }`,
			`{"kv_transfer_params":KV,"sampling_params": {"max_tokens":1} }`,
			`{"kv_transfer_params":KV,"sampling_params": {"min_tokens":3} }`},
		{"generate, empty", shapeGenerate, `{"sampling_params":{}}`,
			`{"kv_transfer_params":KV,"sampling_params":{"max_tokens":1}}`, `{"kv_transfer_params":KV,"sampling_params":{}}`},
		{"generate, none", shapeGenerate, `{"token_ids":[1]}`,
			`{"kv_transfer_params":KV,"sampling_params":{"max_tokens":1},"token_ids":[1]}`, `{"kv_transfer_params":KV,"token_ids":[1]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, herr := parseBody(tt.shape, []byte(tt.in), bodyLimits{})
			if herr != nil {
				t.Fatal(herr)
			}
			kv := func(s string) string { return strings.ReplaceAll(s, "KV", kvJSON) }
			if diff := cmp.Diff(kv(tt.prefill), string(b.prefill(nil, "id", []byte(kvJSON)))); diff != "" {
				t.Errorf("prefill (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(kv(tt.decode), string(b.decode(nil, "id", []byte(kvJSON)))); diff != "" {
				t.Errorf("decode (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEngineRequest(t *testing.T) {
	want := map[shape]string{
		shapeCompletions: "cmpl-id-0", shapeChat: "chatcmpl-id", shapeResponses: "resp_id_0", shapeMessages: "chatcmpl-id",
		shapeGenerate: "generate-tokens-id",
	}
	for s, name := range want {
		if got := string(s.appendEngineRequest(nil, "id")); got != name {
			t.Errorf("%s: got %s, want %s", s, got, name)
		}
	}
}
