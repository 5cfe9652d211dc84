package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/gather"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
)

const (
	kvJSON   = `{"do_remote_decode":true}`
	kvMember = `"kv_transfer_params":` + kvJSON
)

// shapesSplit is how many shapes are served by two engines; they come first.
const shapesSplit = int(ShapeGenerate) + 1

func TestParseBodyFields(t *testing.T) {
	type fields struct {
		Model                       string
		Stream, Removed             bool
		N, Max, Prompts, Bytes, IDs int
		Why                         string
	}
	tests := []struct {
		name  string
		shape Shape
		in    string
		want  fields
	}{
		{"empty", ShapeCompletions, `{}`, fields{N: 1, Max: -1, Prompts: 1}},
		{"plain", ShapeCompletions, `{"model":"m","prompt":"abcd","max_tokens":5}`, fields{Model: "m", N: 1, Max: 5, Prompts: 1, Bytes: 4}},
		{"escaped", ShapeCompletions, `{"\u006dodel":"a\u0062","stream":true}`, fields{Model: "ab", Stream: true, N: 1, Max: -1, Prompts: 1}},
		{"nulls", ShapeCompletions, `{"model":null,"stream":null,"stream_options":null,"n":null,"max_tokens":null,"echo":null,"stop":null,"logprobs":null,"prompt_logprobs":null,"prompt":null,"kv_transfer_params":null}`,
			fields{N: 1, Max: -1, Prompts: 1}},
		{"usage", ShapeChat, `{"stream_options":{"include_usage":true},"stream":true}`, fields{Stream: true, N: 1, Max: -1, Prompts: 1}},
		{"chat", ShapeChat, `{"messages":[{"role":"user"}],"max_tokens":1,"max_completion_tokens":9}`, fields{N: 1, Max: 9, Prompts: 1, Bytes: 17}},
		{"completions keep max_tokens", ShapeCompletions, `{"max_tokens":7,"max_completion_tokens":1}`, fields{N: 1, Max: 7, Prompts: 1}},
		{"one prompt in an array", ShapeCompletions, `{"prompt":["abc"]}`, fields{N: 1, Max: -1, Prompts: 1, Bytes: 3}},
		{"prompts", ShapeCompletions, `{"prompt":["abc","de"]}`, fields{N: 1, Max: -1, Prompts: 2, Bytes: 5, Why: unsplitPrompts}},
		{"tokens", ShapeCompletions, `{"prompt":[1, 2,3]}`, fields{N: 1, Max: -1, Prompts: 1, IDs: 3}},
		{"token arrays", ShapeCompletions, `{"prompt":[[1,2],[3]]}`, fields{N: 1, Max: -1, Prompts: 2, IDs: 3, Why: unsplitPrompts}},
		{"n", ShapeChat, `{"n":2}`, fields{N: 2, Max: -1, Prompts: 1, Why: UnsplitN}},
		{"best_of", ShapeCompletions, `{"best_of":2}`, fields{N: 1, Max: -1, Prompts: 1, Why: UnsplitBestOf}},
		{"echo", ShapeCompletions, `{"echo":true}`, fields{N: 1, Max: -1, Prompts: 1, Why: UnsplitEcho}},
		{"no echo", ShapeCompletions, `{"echo":false,"use_beam_search":false}`, fields{N: 1, Max: -1, Prompts: 1}},
		{"prompt_logprobs", ShapeChat, `{"prompt_logprobs":0}`, fields{N: 1, Max: -1, Prompts: 1, Why: UnsplitLogprobs}},
		{"beam", ShapeChat, `{"use_beam_search":true}`, fields{N: 1, Max: -1, Prompts: 1, Why: UnsplitBeam}},
		{"embeds", ShapeCompletions, `{"prompt_embeds":"AA=="}`, fields{N: 1, Max: -1, Prompts: 1, Why: UnsplitEmbedding}},
		{"one token", ShapeChat, `{"max_completion_tokens":1}`, fields{N: 1, Max: 1, Prompts: 1, Why: UnsplitOneToken}},
		{"no token", ShapeCompletions, `{"max_tokens":0}`, fields{N: 1, Max: 0, Prompts: 1, Why: UnsplitOneToken}},
		{"transfer params", ShapeChat, `{"kv_transfer_params":{"remote_host":"x"}}`, fields{Removed: true, N: 1, Max: -1, Prompts: 1}},
		{"in xargs", ShapeChat, `{"vllm_xargs":{"a":1,"ec_transfer_params":{}}}`, fields{Removed: true, N: 1, Max: -1, Prompts: 1}},
		{"in extra_args", ShapeChat, `{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}`, fields{Removed: true, N: 1, Max: -1, Prompts: 1}},
		{"elsewhere", ShapeChat, `{"tools":{"kv_transfer_params":{}},"sampling_params":{"kv_transfer_params":1}}`, fields{N: 1, Max: -1, Prompts: 1}},
		{"holders of another kind", ShapeChat, `{"vllm_xargs":[1],"sampling_params":{"extra_args":"x"}}`, fields{N: 1, Max: -1, Prompts: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, herr := ParseBody(tt.shape, []byte(tt.in), Limits{})
			if herr != nil {
				t.Fatal(herr)
			}
			got := fields{b.Model, b.Stream, b.Removed, b.N, b.MaxTokens, b.Prompts, b.promptBytes, b.promptIDs, b.Unsplittable}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseBodyRefusals(t *testing.T) {
	lim := Limits{N: 4, Prompts: 2, Stop: 2, Logprobs: 5, Strict: true}
	tests := []struct {
		name, in string
		reason   reason.Reason
		param    string
	}{
		{"empty", ``, reason.BadJSON, ""},
		{"blank", " \n", reason.BadJSON, ""},
		{"array", `[]`, reason.BadJSON, ""},
		{"broken", `{"model":`, reason.BadJSON, ""},
		{"broken array", `[`, reason.BadJSON, ""},
		{"trailing bytes", `{}x`, reason.BadJSON, ""},
		{"bad UTF-8", "{\"prompt\":\"\xff\"}", reason.BadJSON, ""},
		{"too deep", `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, reason.BadJSON, ""},
		{"too deep in a holder", `{"vllm_xargs":{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}}`, reason.BadJSON, ""},
		{"same key", `{"model":"a","model":"b"}`, reason.DuplicateKey, ""},
		{"same key nested", `{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`, reason.DuplicateKey, ""},
		{"same key in a holder", `{"vllm_xargs":{"a":1,"a":2}}`, reason.DuplicateKey, ""},
		{"same key, other mistake first", `{"n":"x","a":1,"a":1}`, reason.DuplicateKey, ""},
		{"model", `{"model":7}`, reason.BadField, "model"},
		{"stream", `{"stream":"true"}`, reason.BadField, "stream"},
		{"stream number", `{"stream":1}`, reason.BadField, "stream"},
		{"stream_options", `{"stream":true,"stream_options":[]}`, reason.BadField, "stream_options"},
		{"include_usage", `{"stream":true,"stream_options":{"include_usage":1}}`, reason.BadField, "stream_options.include_usage"},
		{"stream_options without stream", `{"stream_options":{"include_usage":true}}`, reason.BadField, "stream_options"},
		{"n zero", `{"n":0}`, reason.BadField, "n"},
		{"n text", `{"n":"2"}`, reason.BadField, "n"},
		{"n fraction", `{"n":1.5}`, reason.BadField, "n"},
		{"n exponent", `{"n":1e3}`, reason.BadField, "n"},
		{"n huge", `{"n":99999999999999999999}`, reason.BadField, "n"},
		{"n over cap", `{"n":5}`, reason.OverCap, "n"},
		{"best_of over cap", `{"best_of":5}`, reason.OverCap, "best_of"},
		{"max_tokens", `{"max_tokens":-1}`, reason.BadField, "max_tokens"},
		{"max_completion_tokens", `{"max_completion_tokens":-1}`, reason.BadField, "max_completion_tokens"},
		{"min_tokens", `{"min_tokens":true}`, reason.BadField, "min_tokens"},
		{"echo", `{"echo":1}`, reason.BadField, "echo"},
		{"logprobs over cap", `{"logprobs":6}`, reason.OverCap, "logprobs"},
		{"all logprobs", `{"prompt_logprobs":-1}`, reason.OverCap, "prompt_logprobs"},
		{"top_logprobs over cap", `{"top_logprobs":6}`, reason.OverCap, "top_logprobs"},
		{"stop over cap", `{"stop":["a","b","c"]}`, reason.OverCap, "stop"},
		{"stop of numbers", `{"stop":[1]}`, reason.BadField, "stop"},
		{"prompt number", `{"prompt":1}`, reason.BadField, "prompt"},
		{"prompt empty", `{"prompt":[]}`, reason.BadField, "prompt"},
		{"prompt mixed", `{"prompt":["a",1]}`, reason.BadField, "prompt"},
		{"prompt of nulls", `{"prompt":[null]}`, reason.BadField, "prompt"},
		{"token fraction", `{"prompt":[1.5]}`, reason.BadField, "prompt"},
		{"token negative", `{"prompt":[[-1]]}`, reason.BadField, "prompt"},
		{"token array of text", `{"prompt":[["a"]]}`, reason.BadField, "prompt"},
		{"empty token array", `{"prompt":[[]]}`, reason.BadField, "prompt"},
		{"prompts over cap", `{"prompt":["a","b","c"]}`, reason.OverCap, "prompt"},
		{"transfer params", `{"kv_transfer_params":{}}`, reason.TransferParams, "kv_transfer_params"},
		{"transfer params within", `{"sampling_params":{"extra_args":{"ec_transfer_params":{}}}}`, reason.TransferParams, "sampling_params.extra_args.ec_transfer_params"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, herr := ParseBody(ShapeCompletions, []byte(tt.in), lim)
			if herr == nil {
				t.Fatal("accepted")
			}
			if herr.Status != 400 || herr.Reason != tt.reason || herr.Param != tt.param {
				t.Errorf("got %d %s %q (%s), want 400 %s %q", herr.Status, herr.Reason, herr.Param, herr.Msg, tt.reason, tt.param)
			}
		})
	}
}

// TestBoundsAreTold: the message says whether a number is too large or a list too long.
func TestBoundsAreTold(t *testing.T) {
	lim := Limits{N: 4, Prompts: 2, Stop: 2, Logprobs: 5}
	tests := []struct {
		name  string
		shape Shape
		in    string
		want  string
	}{
		{"number", ShapeCompletions, `{"n":5}`, "n must be at most 4."},
		{"stop", ShapeCompletions, `{"stop":["a","b","c"]}`, "stop must have at most 2 elements."},
		{"prompts", ShapeCompletions, `{"prompt":["a","b","c"]}`, "prompt must have at most 2 elements."},
		{"conversations", ShapeBatch, `{"messages":[[{}],[{}],[{}]]}`, "messages must have at most 2 elements."},
		{"tokens", ShapeChat, `{"logprob_token_ids":[1,2,3,4,5,6]}`, "logprob_token_ids must have at most 5 elements."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseBody(tt.shape, []byte(tt.in), lim); err == nil || err.Msg != tt.want {
				t.Errorf("got %v; want %s", err, tt.want)
			}
		})
	}
}

func TestSplice(t *testing.T) {
	tests := []struct {
		name, in, prefill, decode string
	}{
		{"empty object", `{}`, `{"kv_transfer_params":KV,"max_tokens":1}`, `{"kv_transfer_params":KV}`},
		{"spaces", ` { "model" : "m" } `, ` {"kv_transfer_params":KV,"max_tokens":1, "model" : "m" } `, ` {"kv_transfer_params":KV, "model" : "m" } `},
		{"limits", `{"max_tokens":10,"max_completion_tokens": 20 ,"min_tokens":5}`,
			`{"kv_transfer_params":KV,"max_tokens":1,"max_completion_tokens": 1 }`, `{"kv_transfer_params":KV,"max_tokens":10,"max_completion_tokens": 20 ,"min_tokens":5}`},
		{"stream", `{"stream":true,"stream_options":{"include_usage":true},"seed":9223372036854775807,"temperature":0.10000000000000000001}`,
			`{"kv_transfer_params":KV,"max_tokens":1,"stream":false,"seed":9223372036854775807,"temperature":0.10000000000000000001}`,
			`{"kv_transfer_params":KV,"stream":true,"stream_options":{"include_usage":true},"seed":9223372036854775807,"temperature":0.10000000000000000001}`},
		{"all removed", `{"kv_transfer_params":{},"request_id":"x","ec_transfer_params":1}`, `{"kv_transfer_params":KV,"max_tokens":1}`, `{"kv_transfer_params":KV}`},
		{"first removed", `{"kv_transfer_params":{}, "request_id":"x", "a":1}`, `{"kv_transfer_params":KV,"max_tokens":1,  "a":1}`, `{"kv_transfer_params":KV,  "a":1}`},
		{"last removed", `{"a":1, "request_id":"x" , "kv_transfer_params":{} }`, `{"kv_transfer_params":KV,"max_tokens":1,"a":1  }`, `{"kv_transfer_params":KV,"a":1  }`},
		{"middle removed", `{"a":1,"request_id":"x","b":2,"ec_transfer_params":0,"c":3}`, `{"kv_transfer_params":KV,"max_tokens":1,"a":1,"b":2,"c":3}`, `{"kv_transfer_params":KV,"a":1,"b":2,"c":3}`},
		{"escaped key", `{"kv\u005ftransfer_params":{"remote_host":"h"},"a":1}`, `{"kv_transfer_params":KV,"max_tokens":1,"a":1}`, `{"kv_transfer_params":KV,"a":1}`},
		{"nested", `{"vllm_xargs":{"kv_transfer_params":1,"ec_transfer_params":2},"sampling_params":{"extra_args":{"a":1,"kv_transfer_params":3},"top_k":5}}`,
			`{"kv_transfer_params":KV,"max_tokens":1,"vllm_xargs":{},"sampling_params":{"extra_args":{"a":1},"top_k":5}}`,
			`{"kv_transfer_params":KV,"vllm_xargs":{},"sampling_params":{"extra_args":{"a":1},"top_k":5}}`},
		{"null limit", `{"max_tokens":null,"stream":null}`, `{"kv_transfer_params":KV,"max_tokens":1,"stream":false}`, `{"kv_transfer_params":KV,"max_tokens":null,"stream":null}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, herr := ParseBody(ShapeChat, []byte(tt.in), Limits{})
			if herr != nil {
				t.Fatal(herr)
			}
			kv := func(s string) string { return strings.ReplaceAll(s, "KV", kvJSON) }
			if diff := cmp.Diff("x"+kv(tt.prefill), string(b.AppendPrefill([]byte("x"), "id", []byte(kvMember)))); diff != "" {
				t.Errorf("prefill (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff("x"+kv(tt.decode), string(b.AppendDecode([]byte("x"), "id", []byte(kvMember)))); diff != "" {
				t.Errorf("decode (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.in, string(b.Raw)); diff != "" {
				t.Errorf("the original changed (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("aggregated", func(t *testing.T) {
		in := `{"request_id":"x","a":1,"kv_transfer_params":{},"max_tokens":1}`
		b, herr := ParseBody(ShapeChat, []byte(in), Limits{})
		if herr != nil {
			t.Fatal(herr)
		}
		if diff := cmp.Diff(`{"a":1,"max_tokens":1}`, string(b.AppendDecode(nil, "id", nil))); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestProbeBody(t *testing.T) {
	b, herr := ParseBody(ShapeCompletions, AppendProbe(nil, `a "b"`, "a b"), Limits{})
	if herr != nil {
		t.Fatal(herr)
	}
	if b.Model != `a "b"` || b.MaxTokens != 2 || b.Unsplittable != "" {
		t.Errorf("got model %q, %d tokens, unsplittable %q", b.Model, b.MaxTokens, b.Unsplittable)
	}
}

// leverKeys are members of the outermost object that no engine gets from clients who may not say how urgent they are and whose
// caches are kept apart.
var leverKeys = []string{
	"request_id", "rid", "session_id", "session_params", "priority", "extra_key", "bootstrap_host", "bootstrap_port", "bootstrap_room",
	"bootstrap_pair_key", "decode_tp_size", "disagg_prefill_dp_rank", "routed_dp_rank", "data_parallel_rank",
}

// expected is what a leg's body must decode to, by encoding/json and maps.
func expected(s Shape, in []byte, l Variant) map[string]any {
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	var m map[string]any
	if dec.Decode(&m) != nil {
		return nil
	}
	sub := func(m map[string]any, key string) map[string]any {
		s, _ := m[key].(map[string]any)
		return s
	}
	for _, at := range []map[string]any{m, sub(m, "vllm_xargs"), sub(sub(m, "sampling_params"), "extra_args")} {
		delete(at, "kv_transfer_params")
		delete(at, "ec_transfer_params")
	}
	for _, at := range []map[string]any{sub(m, "vllm_xargs"), sub(sub(m, "sampling_params"), "extra_args")} {
		delete(at, "kv_cache_report_mode")
	}
	for _, key := range leverKeys {
		delete(m, key)
	}
	m["kv_transfer_params"] = map[string]any{"do_remote_decode": true}
	m["cache_salt"] = "sealed"
	if s == ShapeResponses {
		m["request_id"] = "resp_id"
	}
	if l != VariantPrefill {
		return m
	}
	one, had := json.Number("1"), func(key string) bool { _, ok := m[key]; return ok }
	switch s {
	case ShapeCompletions, ShapeChat:
		delete(m, "stream_options")
		delete(m, "min_tokens")
		m["max_tokens"] = one
		if had("max_completion_tokens") {
			m["max_completion_tokens"] = one
		}
	case ShapeResponses:
		delete(m, "stream_options")
		m["max_output_tokens"], m["store"] = one, false
	case ShapeMessages:
		m["max_tokens"] = one
	case ShapeGenerate:
		delete(m, "stream_options")
		if !had("sampling_params") {
			m["sampling_params"] = map[string]any{}
		}
		delete(sub(m, "sampling_params"), "min_tokens")
		sub(m, "sampling_params")["max_tokens"] = one
	}
	if had("stream") {
		m["stream"] = false
	}
	return m
}

// FuzzBody has the bodies of both legs be what encoding/json makes of the client's, in every shape, and no place left through
// which an engine could be told of a hand-off that the router has not made.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":["a"],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"min_tokens":2}`,
		`{"kv_transfer_params":{"a":1},"ec_transfer_params":{},"vllm_xargs":{"kv_transfer_params":1,"x":2,"ec_transfer_params":3},"sampling_params":{"extra_args":{"ec_transfer_params":1}},"request_id":"r","a":1}`,
		`{"messages":[{"role":"user","content":"kv_transfer_params"}],"max_completion_tokens":5,"n":1}`,
		`{"prompt":[[1,2],[3]],"stop":["x"],"logprobs":2}`,
		`{"input":[{"content":[{"image_url":"https://a.b/c"}]}],"max_output_tokens":7,"store":true,"tools":[{"type":"function"}],"truncation":"disabled","cache_salt":"s"}`,
		`{"system":[{"text":"s"}],"messages":[{"content":"a"}],"max_tokens":9,"stop_sequences":["x"],"stream":true}`,
		`{"token_ids":[1,2],"sampling_params":{"min_tokens":1,"max_tokens":9,"seed":18446744073709551615,"extra_args":{"kv_transfer_params":{},"a":1}},"stream":true,"stream_options":{"include_usage":true}}`,
		`{"token_ids":[1],"sampling_params":{"extra_args":{"ec_transfer_params":1}, "min_tokens" : 2 }}`,
		`{"` + strings.Join(leverKeys, `":1,"`) + `":1,"kv_transfer_params":1,"ec_transfer_params":1,"stream":true,"stream_options":{},"max_tokens":9,"max_completion_tokens":9,"max_output_tokens":9,` +
			`"min_tokens":2,"store":true,"cache_salt":"x","vllm_xargs":{"kv_transfer_params":1,"kv_cache_report_mode":"full","ec_transfer_params":2},` +
			`"sampling_params":{"extra_args":{"a":1,"kv_cache_report_mode":"full","kv_transfer_params":1,"ec_transfer_params":2},"min_tokens":1,"max_tokens":4}}`,
		`{"sampling_params":{}}`, `{"seed":9223372036854775807,"temperature":1.0000000000000000000001,"kv\u005ftransfer_params":1}`,
		` { } `, `{"request_id":"x"}`, `{"a":1,"kv_transfer_params":1}`,
	} {
		for shape := range shapesSplit {
			f.Add([]byte(s), byte(shape))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, which byte) {
		s := Shape(int(which) % shapesSplit)
		if bytes.Contains(bytes.ToLower(in), []byte(`\ud`)) {
			return // encoding/json takes every lone surrogate for U+FFFD
		}
		b, herr := ParseBody(s, in, Limits{N: 16, Media: &MediaRules{}})
		if herr != nil {
			if msg := herr.AppendJSON(nil); !json.Valid(msg) || len(msg) > 8*answer.MaxErrorMessage || herr.Status != 400 {
				t.Errorf("bad refusal %d %s", herr.Status, msg)
			}
			return
		}
		if !isStrict(in) {
			t.Fatalf("accepted %q", in)
		}
		b.Sealed = `"sealed"`
		for l, out := range [][]byte{VariantDecode: b.AppendDecode(nil, "id", []byte(kvMember)), VariantPrefill: b.AppendPrefill(nil, "id", []byte(kvMember))} {
			if !isStrict(out) {
				t.Fatalf("%s: leg %d of %q is no JSON: %q", s, l, in, out)
			}
			var got map[string]any
			dec := json.NewDecoder(bytes.NewReader(out))
			dec.UseNumber()
			if err := dec.Decode(&got); err != nil {
				t.Fatal(err)
			}
			if want := expected(s, in, Variant(l)); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: leg %d of %q: %s", s, l, in, cmp.Diff(want, got))
			}
		}
		b.Sealed = ""
		clean := b.AppendDecode(nil, "id", nil)
		again, herr := ParseBody(s, clean, Limits{})
		if herr != nil || again.Removed {
			t.Fatalf("%s: sanitised %q is %q: %v", s, in, clean, herr)
		}
		if twice := again.AppendDecode(nil, "id", nil); !bytes.Equal(twice, clean) {
			t.Errorf("%s: sanitising twice: %q, once: %q", s, twice, clean)
		}
		if len(b.owned) == 0 && s != ShapeResponses && !bytes.Equal(clean, in) {
			t.Errorf("%s: nothing to change in %q, and it became %q", s, in, clean)
		}
	})
}

// BenchmarkBody is what a body costs between the client's socket and the engines': it is read, and both legs' bodies are written.
func BenchmarkBody(b *testing.B) {
	for _, size := range []int{1 << 10, 30 << 10, 380 << 10} {
		in := []byte(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":128,"temperature":0,"stream":true}`,
			strings.Repeat("Tell me more. ", size/14)))
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			buf := make([]byte, 0, 2*len(in))
			for b.Loop() {
				p, herr := ParseBody(ShapeChat, in, Limits{})
				if herr != nil {
					b.Fatal(herr)
				}
				buf = p.AppendPrefill(buf[:0], "id", []byte(kvMember))
				buf = p.AppendDecode(buf[:0], "id", []byte(kvMember))
			}
		})
	}
}

// isStrict reports whether b is JSON as the gateway accepts it. jsonscan's tests hold its scanner against encoding/json.
func isStrict(b []byte) bool {
	s := jsonscan.Scanner{Bytes: b, MaxDepth: maxBodyDepth, Unique: true}
	s.Space()
	return json.Valid(b) && s.Value(0) && s.End()
}

// What asks for token ids stands before all else, as if it was put into the body that goes without.
func TestTokensAreAskedForFirst(t *testing.T) {
	const ask = `"return_token_ids":true`
	for seed := range uint64(200) {
		sh, raw := randomFan(rand.New(rand.NewPCG(seed, 1)))
		b, e := ParseBody(sh, []byte(raw), Limits{})
		if e != nil {
			t.Fatal(e)
		}
		for kv, with := range map[string]string{"": ask, kvMember: ask + "," + kvMember} {
			var params []byte
			if kv != "" {
				params = []byte(kv)
			}
			want := strings.Replace(string(b.AppendDecode(nil, "id", params)), "{", "{"+ask+",", 1)
			if got := string(b.AppendDecode(nil, "id", []byte(with))); got != want {
				t.Fatalf("%s\nwant\n%s", got, want)
			}
		}
	}
}

// A body that goes without its long stretches is, once they are put back, the one that has them copied.
func TestGapsMakeTheSameBody(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", gather.MinGap/16)
	for _, raw := range []string{
		`{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`,
		`{"stream":true,"messages":"` + long + `","max_tokens":9,"kv_transfer_params":{"a":"` + long + `"},"user":"` + long + `"}`,
		`{"max_tokens":9,"stream":true,"x":"` + long + long + `"}`,
		strings.Repeat(" ", gather.MinGap) + `{"max_tokens":9}` + strings.Repeat("\n", gather.MinGap),
		strings.Repeat(" ", gather.MinGap) + `{"request_id":"` + long + `"}`,
		`{"x":"` + long[1:] + `"}`,
		`{"x":"` + long[:gather.MinGap/2] + `"}`,
	} {
		b, e := ParseBody(ShapeCompletions, []byte(raw), Limits{})
		if e != nil {
			t.Fatalf("%.60s: %v", raw, e)
		}
		for _, l := range []Variant{VariantDecode, VariantPrefill, VariantPrefillMirrored} {
			var g gather.Gaps
			joined := b.AppendVariant([]byte("x"), &g, l, "id", []byte(kvMember))
			want := b.AppendVariant([]byte("x"), nil, l, "id", []byte(kvMember))
			got := bytes.Join(g.Join(nil, joined), nil)
			if !bytes.Equal(got, want) || len(joined)+g.Size() != len(want) {
				t.Errorf("leg %d of %.60s…: %d bytes and %d missing, together %.100q; want %d, %.100q", l, raw, len(joined), g.Size(), got, len(want), want)
			}
			if room := 2 * gather.MinGap; len(joined) > room {
				t.Errorf("leg %d of %.60s…: %d bytes were copied, want at most %d", l, raw, len(joined), room)
			}
		}
	}
}
