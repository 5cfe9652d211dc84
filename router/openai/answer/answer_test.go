package answer

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/openai/jsonscan"
)

func TestStripTransferParams(t *testing.T) {
	tests := []struct {
		name, in, want string
		ok             bool
	}{
		{"nothing", `{"a":1}`, `{"a":1}`, true},
		{"nothing, no JSON", `garbage`, `garbage`, true},
		{"only", `{"kv_transfer_params":{"remote_host":"h"}}`, `{}`, true},
		{"null", `{"id":"x","kv_transfer_params":null}`, `{"id":"x"}`, true},
		{"first", `{"kv_transfer_params":{"a":[1,{}]}, "id":"x"}`, `{ "id":"x"}`, true},
		{"middle", `{"id":"x" , "kv_transfer_params":{} , "seed":12345678901234567890}`, `{"id":"x"  , "seed":12345678901234567890}`, true},
		{"last of two", `{"id":"x","kv_transfer_params" : {"a":[]} }`, `{"id":"x" }`, true},
		{"twice", `{"kv_transfer_params":{},"b":3,"kv_transfer_params":null}`, `{"b":3}`, true},
		{"within itself", `{"a":1,"kv_transfer_params":{"kv_transfer_params":1}}`, `{"a":1}`, true},
		{"and in a choice", `{"choices":[{"ec_transfer_params":{}}],"kv_transfer_params":{}}`, `{"choices":[{}]}`, true},
		{"and in a choice, escaped", `{"choices":[{"kv\u005ftransfer_params":{}}],"kv_transfer_params":{}}`, `{"choices":[{}]}`, true},
		{"and in the text", `{"text":"a_transfer_params","kv_transfer_params":{}}`, `{"text":"a_transfer_params"}`, true},
		{"both", `{"ec_transfer_params":1,"kv_transfer_params":2,"b":3}`, `{"b":3}`, true},
		{"in a choice", `{"choices":[{"kv_transfer_params":{},"text":"a"},{"text":"b","ec_transfer_params":{}}]}`, `{"choices":[{"text":"a"},{"text":"b"}]}`, true},
		{"escaped key", `{"kv_transfer_params":1,"\u006bv_transfer_params":2,"a":3}`, `{"a":3}`, true},
		{"in the text", `{"text":"\"kv_transfer_params\":{}"}`, `{"text":"\"kv_transfer_params\":{}"}`, true},
		{"broken", `{"kv_transfer_params":{}`, ``, false},
		{"an array", `[{"kv_transfer_params":{}}]`, `[{}]`, true},
		{"a word", `"kv_transfer_params"`, ``, false},
		{"bytes behind", `{"kv_transfer_params":{}} {}`, ``, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := StripTransferParams([]byte("x"), []byte(tt.in))
			if string(got) != "x"+tt.want || ok != tt.ok {
				t.Errorf("got %q %v, want %q %v", got, ok, tt.want, tt.ok)
			}
			in := []byte(tt.in)
			if got, ok := StripTransferParams(in[:0], in); string(got) != tt.want || ok != tt.ok {
				t.Errorf("in place: got %q %v, want %q %v", got, ok, tt.want, tt.ok)
			}
			in = []byte(tt.in)
			if a, is := Parse(in); is {
				if got, ok := Strip(in, &a); string(got) != tt.want || ok != tt.ok {
					t.Errorf("an answer that was read: got %q %v, want %q %v", got, ok, tt.want, tt.ok)
				}
			}
		})
	}
}

func TestStripEvent(t *testing.T) {
	tests := []struct {
		name, in, want string
		ok             bool
	}{
		{"nothing", "data: {\"a\":1}\n\n", "data: {\"a\":1}\n\n", true},
		{"done", "data: [DONE]\n\n", "data: [DONE]\n\n", true},
		{"one", "data: {\"a\":1,\"kv_transfer_params\":{}}\n\n", "data: {\"a\":1}\n\n", true},
		{"CRLF and a comment", ": x\r\ndata:{\"kv_transfer_params\":{},\"a\":1}\r\n\r\n", ": x\r\ndata:{\"a\":1}\r\n\r\n", true},
		{"two data lines", "data: {\"kv_transfer_params\":{},\ndata: \"a\":1}\n\n", "", false},
		{"broken", "data: {\"kv_transfer_params\":\n\n", "", false},
		{"outside of the data", "event: kv_transfer_params\ndata: {}\n\n", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := StripEvent([]byte("x"), []byte(tt.in))
			if string(got) != "x"+tt.want || ok != tt.ok {
				t.Errorf("got %q %v, want %q %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestParseAnswer(t *testing.T) {
	tests := []struct {
		name, in string
		want     Answer
		ok       bool
	}{
		{"nothing", ` {"choices":[]}`, Answer{}, true},
		{"no object", `[1]`, Answer{}, false},
		{"empty", ``, Answer{}, false},
		{"broken", `{"usage":{}`, Answer{}, false},
		{"usage", `{"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`,
			Answer{HasUsage: true, hasCached: true, PromptTokens: 7, CompletionTokens: 2, CachedTokens: 4}, true},
		{"usage without details", `{"usage":{"prompt_tokens":7,"prompt_tokens_details":null}}`, Answer{HasUsage: true, PromptTokens: 7}, true},
		{"null usage", `{"usage":null}`, Answer{}, true},
		{"params", `{"id":"x","kv_transfer_params": {"remote_block_ids":[[1,2]],"tp_size":2} ,"usage":null}`,
			Answer{KVParams: []byte(`{"remote_block_ids":[[1,2]],"tp_size":2}`)}, true},
		{"null params", `{"kv_transfer_params":null}`, Answer{}, true},
		{"error", `{"error":{"message":"KV","type":"x","param":null,"code":"transfer_failed"}}`,
			Answer{Failed: true, ErrorCode: "transfer_failed", ErrorMessage: "KV"}, true},
		{"numbered error", `{"error":{"message":"m","code":400}}`, Answer{Failed: true, ErrorMessage: "m"}, true},
		{"bare error", `{"error":"Unauthorized"}`, Answer{Failed: true, ErrorMessage: "Unauthorized"}, true},
		{"null error", `{"error":null}`, Answer{}, true},
		{"in the text", `{"choices":[{"text":"\"usage\":{}","error":{"code":"x"}}]}`, Answer{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Parse([]byte(tt.in))
			got.transfer = jsonscan.Span{} // see TestStripTransferParams
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(Answer{}, jsonscan.Span{})); diff != "" || ok != tt.ok {
				t.Errorf("ok %v, want %v (-want +got):\n%s", ok, tt.ok, diff)
			}
		})
	}
}

func FuzzStrip(f *testing.F) {
	f.Add([]byte(`{"a":[{"kv_transfer_params":1,"b":2}],"ec_transfer_params":{},"c":"kv_transfer_params"}`))
	f.Add([]byte(`{"kv_transfer_params":{"kv_transfer_params":1}}`))
	f.Add([]byte(`{"kv_transfer_params":{},"kv_transfer_params":{},"a":{"ec_transfer_params":0,"x":1}}`))
	f.Add([]byte(`{"kv\u005ftransfer_params":{},"\u0065\u0063_transfer_params":[{"a":"\u00e9"}],"b":"\u0007\\u005f"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, ok := StripTransferParams(nil, in)
		if a, is := Parse(in); is {
			p := bytes.Clone(in)
			if got, also := Strip(p, &a); also != ok || !bytes.Equal(got, out) {
				t.Errorf("%q became %q, as an answer that was read %q", in, out, got)
			}
		}
		var v any
		if ok && json.Unmarshal(out, &v) == nil && holdsTransferKey(v) {
			t.Fatalf("%q became %q", in, out)
		}
		if !ok {
			if len(out) != 0 {
				t.Errorf("appended %q", out)
			}
			return
		}
		s := jsonscan.Scanner{Bytes: in, MaxDepth: MaxAnswerDepth}
		if s.Space(); s.Value(0) && s.End() && bytes.Contains(in, []byte("_transfer_params")) {
			s := jsonscan.Scanner{Bytes: out, MaxDepth: MaxAnswerDepth}
			if s.Space(); !s.Value(0) || !s.End() {
				t.Errorf("%q became %q, which is no JSON: %s", in, out, s.Why)
			}
		}
		if twice, ok := StripTransferParams(nil, out); !ok || !bytes.Equal(twice, out) {
			t.Errorf("%q stripped is %q, twice %q", in, out, twice)
		}
	})
}

// holdsTransferKey reports whether a value names hand-off instructions at any depth.
func holdsTransferKey(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if IsTransferKey([]byte(key)) || holdsTransferKey(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, holdsTransferKey)
	}
	return false
}
