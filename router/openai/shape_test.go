package openai

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
		shape Shape
		in    string
		want  fields
	}{
		{"responses", ShapeResponses, `{"input":"abcd","instructions":"ef","max_output_tokens":9,"n":2}`, fields{N: 1, Max: 9, Bytes: 10}},
		{"responses, items", ShapeResponses, `{"input":[{"content":"ab"}]}`, fields{N: 1, Max: -1, Bytes: 18}},
		{"responses, one token", ShapeResponses, `{"max_output_tokens":1}`, fields{N: 1, Max: 1, Why: UnsplitOneToken}},
		{"responses, limits of others", ShapeResponses, `{"max_tokens":1}`, fields{N: 1, Max: -1}},
		{"responses, background", ShapeResponses, `{"background":true}`, fields{N: 1, Max: -1, Why: UnsplitBackground}},
		{"responses, no background", ShapeResponses, `{"background":false,"store":true}`, fields{N: 1, Max: -1}},
		{"responses, previous", ShapeResponses, `{"previous_response_id":"resp_1"}`, fields{N: 1, Max: -1, Why: unsplitPrevious}},
		{"responses, no previous", ShapeResponses, `{"previous_response_id":null}`, fields{N: 1, Max: -1}},
		{"responses, functions", ShapeResponses, `{"tools":[{"type":"function","name":"f"},{"name":"g","type":"custom"}]}`, fields{N: 1, Max: -1}},
		{"responses, web search", ShapeResponses, `{"tools":[{"type":"function"},{"type":"web_search_preview"}]}`, fields{N: 1, Max: -1, Why: UnsplitServerTools}},
		{"responses, mcp", ShapeResponses, `{"tools":[{"server_label":"x","type":"mcp"}]}`, fields{N: 1, Max: -1, Why: UnsplitServerTools}},
		{"responses, truncation", ShapeResponses, `{"truncation":"auto"}`, fields{N: 1, Max: -1, Why: UnsplitTruncation}},
		{"responses, null truncation", ShapeResponses, `{"truncation":null}`, fields{N: 1, Max: -1, Why: UnsplitTruncation}},
		{"responses, no truncation", ShapeResponses, `{"truncation":"disabled"}`, fields{N: 1, Max: -1}},
		{"chat, truncation to what fits", ShapeChat, `{"truncate_prompt_tokens":-1}`, fields{N: 1, Max: -1, Why: UnsplitTruncation}},
		{"chat, truncation to a length", ShapeChat, `{"truncate_prompt_tokens":100}`, fields{N: 1, Max: -1}},
		{"messages", ShapeMessages, `{"system":"ab","messages":[{}],"max_tokens":5,"thinking":{"type":"enabled","budget_tokens":4}}`, fields{N: 1, Max: 5, Bytes: 8}},
		{"messages, one token", ShapeMessages, `{"max_tokens":1}`, fields{N: 1, Max: 1, Why: UnsplitOneToken}},
		{"generate", ShapeGenerate, generate + `{"max_tokens":7}}`, fields{N: 1, Max: 7, IDs: 3}},
		{"generate, no limit", ShapeGenerate, generate + `{}}`, fields{N: 1, Max: -1, IDs: 3}},
		{"generate, outer limit", ShapeGenerate, `{"max_tokens":1,"token_ids":[1]}`, fields{N: 1, Max: -1, IDs: 1}},
		{"generate, n", ShapeGenerate, generate + `{"n":2}}`, fields{N: 2, Max: -1, IDs: 3, Why: UnsplitN}},
		{"generate, prompt_logprobs", ShapeGenerate, generate + `{"prompt_logprobs":1}}`, fields{N: 1, Max: -1, IDs: 3, Why: UnsplitLogprobs}},
		{"generate, one token", ShapeGenerate, generate + `{"max_tokens":1}}`, fields{N: 1, Max: 1, IDs: 3, Why: UnsplitOneToken}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, herr := ParseBody(tt.shape, []byte(tt.in), Limits{})
			if herr != nil {
				t.Fatal(herr)
			}
			if diff := cmp.Diff(tt.want, fields{b.N, b.MaxTokens, b.promptBytes, b.promptIDs, b.Unsplittable}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestShapeRefusals(t *testing.T) {
	lim := Limits{N: 4, Prompts: 3, Stop: 2, Logprobs: 5, Strict: true}
	tests := []struct {
		name   string
		shape  Shape
		in     string
		reason reason.Reason
		param  string
	}{
		{"limit", ShapeResponses, `{"max_output_tokens":-1}`, reason.BadField, "max_output_tokens"},
		{"background", ShapeResponses, `{"background":1}`, reason.BadField, "background"},
		{"previous", ShapeResponses, `{"previous_response_id":1}`, reason.BadField, "previous_response_id"},
		{"top_logprobs", ShapeResponses, `{"top_logprobs":6}`, reason.OverCap, "top_logprobs"},
		{"messages", ShapeMessages, `{"messages":"x"}`, reason.BadField, "messages"},
		{"stop_sequences", ShapeMessages, `{"stop_sequences":["a","b","c"]}`, reason.OverCap, "stop_sequences"},
		{"salt", ShapeMessages, `{"cache_salt":1}`, reason.BadField, "cache_salt"},
		{"tokens", ShapeGenerate, `{"token_ids":"x"}`, reason.BadField, "token_ids"},
		{"no tokens", ShapeGenerate, `{"token_ids":[]}`, reason.BadField, "token_ids"},
		{"negative token", ShapeGenerate, `{"token_ids":[-1]}`, reason.BadField, "token_ids"},
		{"sampling_params", ShapeGenerate, `{"sampling_params":null}`, reason.BadField, "sampling_params"},
		{"n", ShapeGenerate, `{"sampling_params":{"n":5}}`, reason.OverCap, "sampling_params.n"},
		{"inner limit", ShapeGenerate, `{"sampling_params":{"max_tokens":-1}}`, reason.BadField, "sampling_params.max_tokens"},
		{"inner logprobs", ShapeGenerate, `{"sampling_params":{"logprobs":-1}}`, reason.OverCap, "sampling_params.logprobs"},
		{"inner stop", ShapeGenerate, `{"sampling_params":{"stop":["a","b","c"]}}`, reason.OverCap, "sampling_params.stop"},
		{"stream_options", ShapeGenerate, `{"stream_options":{}}`, reason.BadField, "stream_options"},
		{"transfer", ShapeResponses, `{"ec_transfer_params":{}}`, reason.TransferParams, "ec_transfer_params"},
		{"transfer within", ShapeGenerate, `{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}`, reason.TransferParams, "sampling_params.extra_args.kv_transfer_params"},
		{"batch", ShapeBatch, `{"messages":[[{}],[{}],[{}],[{}]]}`, reason.OverCap, "messages"},
		{"batch, none", ShapeBatch, `{"messages":"x"}`, reason.BadField, "messages"},
		{"batch, n", ShapeBatch, `{"messages":[[{}]],"n":5}`, reason.OverCap, "n"},
		{"batch, stop", ShapeBatch, `{"messages":[[{}]],"stop":["a","b","c"]}`, reason.OverCap, "stop"},
		{"batch, top_logprobs", ShapeBatch, `{"messages":[[{}]],"top_logprobs":6}`, reason.OverCap, "top_logprobs"},
		{"batch, limit", ShapeBatch, `{"messages":[[{}]],"max_tokens":-5}`, reason.BadField, "max_tokens"},
		{"logprobs of tokens", ShapeChat, `{"logprob_token_ids":[1,2,3,4,5,6]}`, reason.OverCap, "logprob_token_ids"},
		{"inner logprobs of tokens", ShapeGenerate, `{"sampling_params":{"logprob_token_ids":[1,2,3,4,5,6]}}`, reason.OverCap, "sampling_params.logprob_token_ids"},
		{"priority", ShapeMessages, `{"priority":"high"}`, reason.BadField, "priority"},
		{"rank", ShapeChat, `{"data_parallel_rank":1}`, reason.TransferParams, "data_parallel_rank"},
		{"same key in sampling_params", ShapeGenerate, `{"sampling_params":{"n":1,"n":1}}`, reason.DuplicateKey, ""},
		{"too deep in sampling_params", ShapeGenerate, `{"sampling_params":{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}}`, reason.BadJSON, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, herr := ParseBody(tt.shape, []byte(tt.in), lim)
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
		shape           Shape
		in              string
		prefill, decode string
	}{
		{"responses", ShapeResponses, `{"input":"x","max_output_tokens":9,"stream":true,"store":true,"request_id":"mine","seed":9223372036854775807}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","input":"x","max_output_tokens":1,"stream":false,"store":false,"seed":9223372036854775807}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","input":"x","max_output_tokens":9,"stream":true,"store":true,"seed":9223372036854775807}`},
		{"responses, nothing said", ShapeResponses, `{"input":"x","stream_options":{"include_obfuscation":false},"max_tokens":5}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","max_output_tokens":1,"store":false,"input":"x","max_tokens":5}`,
			`{"kv_transfer_params":KV,"request_id":"resp_id","input":"x","stream_options":{"include_obfuscation":false},"max_tokens":5}`},
		{"messages", ShapeMessages, `{"max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":2048},"stream":true,"request_id":"x"}`,
			`{"kv_transfer_params":KV,"max_tokens":1,"thinking":{"type":"enabled","budget_tokens":2048},"stream":false}`,
			`{"kv_transfer_params":KV,"max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":2048},"stream":true}`},
		{"generate", ShapeGenerate, `{"token_ids":[1,2],"sampling_params":{"min_tokens":3, "max_tokens":9,"seed":18446744073709551615,"extra_args":{"kv_transfer_params":1}},"stream":true}`,
			`{"kv_transfer_params":KV,"token_ids":[1,2],"sampling_params":{ "max_tokens":1,"seed":18446744073709551615,"extra_args":{}},"stream":false}`,
			`{"kv_transfer_params":KV,"token_ids":[1,2],"sampling_params":{"min_tokens":3, "max_tokens":9,"seed":18446744073709551615,"extra_args":{}},"stream":true}`},
		{"generate, no limit", ShapeGenerate, `{"sampling_params":{"min_tokens":3,"top_k":4},"max_tokens":7}`,
			`{"kv_transfer_params":KV,"sampling_params":{"max_tokens":1,"top_k":4},"max_tokens":7}`,
			`{"kv_transfer_params":KV,"sampling_params":{"min_tokens":3,"top_k":4},"max_tokens":7}`},
		{"generate, nothing left within", ShapeGenerate, `{"sampling_params": {"min_tokens":3} }`,
			`{"kv_transfer_params":KV,"sampling_params": {"max_tokens":1} }`,
			`{"kv_transfer_params":KV,"sampling_params": {"min_tokens":3} }`},
		{"generate, empty", ShapeGenerate, `{"sampling_params":{}}`,
			`{"kv_transfer_params":KV,"sampling_params":{"max_tokens":1}}`, `{"kv_transfer_params":KV,"sampling_params":{}}`},
		{"generate, none", ShapeGenerate, `{"token_ids":[1]}`,
			`{"kv_transfer_params":KV,"sampling_params":{"max_tokens":1},"token_ids":[1]}`, `{"kv_transfer_params":KV,"token_ids":[1]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, herr := ParseBody(tt.shape, []byte(tt.in), Limits{})
			if herr != nil {
				t.Fatal(herr)
			}
			kv := func(s string) string { return strings.ReplaceAll(s, "KV", kvJSON) }
			if diff := cmp.Diff(kv(tt.prefill), string(b.AppendPrefill(nil, "id", []byte(kvMember)))); diff != "" {
				t.Errorf("prefill (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(kv(tt.decode), string(b.AppendDecode(nil, "id", []byte(kvMember)))); diff != "" {
				t.Errorf("decode (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEngineRequest(t *testing.T) {
	want := map[Shape]string{
		ShapeCompletions: "cmpl-id-0", ShapeChat: "chatcmpl-id", ShapeResponses: "resp_id_0", ShapeMessages: "chatcmpl-id",
		ShapeGenerate: "generate-tokens-id",
	}
	for s, name := range want {
		if got := string(s.AppendEngineRequest(nil, "id")); got != name {
			t.Errorf("%s: got %s, want %s", s, got, name)
		}
	}
}
