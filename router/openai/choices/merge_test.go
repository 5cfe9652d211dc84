package choices

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fanScript is what one choice's engine streams, and what it counted.
type fanScript struct {
	events         []map[string]any
	prompt, tokens int
	cached         int
	reasoning      int // -1: it says nothing of it, -2: null
}

func fanScripts(rng *rand.Rand, prompts, n int, usage, continuous bool) []fanScript {
	out := make([]fanScript, prompts*n)
	for k := range out {
		s := &out[k]
		s.tokens, s.prompt, s.cached = rng.IntN(5), 10+k/n, rng.IntN(9)
		s.reasoning = rng.IntN(5) - 2
		head := func(choices []any) map[string]any {
			return map[string]any{"id": fmt.Sprintf("cmpl-%d", k), "created": float64(1000 + k), "model": "tiny", "choices": choices}
		}
		for i := range s.tokens {
			e := head([]any{map[string]any{"index": 0.0, "delta": map[string]any{
				"content":    strings.Repeat("\"[DONE]\n", rng.IntN(3)),
				"tool_calls": []any{map[string]any{"index": 0.0}},
			}, "seed": json.Number("9223372036854775807")}})
			if continuous {
				e["usage"] = map[string]any{"prompt_tokens": float64(s.prompt), "completion_tokens": float64(i + 1)}
			}
			s.events = append(s.events, e)
		}
		if usage {
			e := head([]any{})
			e["usage"] = map[string]any{
				"prompt_tokens": float64(s.prompt), "completion_tokens": float64(s.tokens), "total_tokens": float64(s.prompt + s.tokens),
				"prompt_tokens_details": map[string]any{"cached_tokens": float64(s.cached), "other": nil},
			}
			switch s.reasoning {
			case -2:
				e["usage"].(map[string]any)["completion_tokens_details"] = nil
			case -1:
			default:
				e["usage"].(map[string]any)["completion_tokens_details"] = map[string]any{"reasoning_tokens": float64(s.reasoning)}
			}
			s.events = append(s.events, e)
		}
	}
	return out
}

// TestFanMergeAnyInterleaving holds merged streams against what encoding/json makes of the same events.
func TestFanMergeAnyInterleaving(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		prompts, n := 1+rng.IntN(3), 1+rng.IntN(3)
		usage := rng.IntN(2) == 0
		scripts := fanScripts(rng, prompts, n, usage, usage && rng.IntN(2) == 0)
		m := NewMerger(prompts, n)
		var got []byte
		var want []map[string]any
		var id, created any
		next, left := make([]int, len(scripts)), len(scripts)
		var says Outcome
		for left > 0 {
			k := rng.IntN(len(scripts))
			s := scripts[k]
			switch i := next[k]; {
			case i > len(s.events):
				continue
			case i == len(s.events):
				left--
				got, says = m.Event(got, k, []byte("data: [DONE]\n\n"))
			default:
				b, err := json.Marshal(s.events[i])
				if err != nil {
					t.Fatal(err)
				}
				if got, says = m.Event(got, k, []byte("data: "+string(b)+"\n\n")); says != Continues {
					t.Fatalf("seed %d: says %d", seed, says)
				}
				var e map[string]any
				if err := json.Unmarshal(b, &e); err != nil {
					t.Fatal(err)
				}
				choices := e["choices"].([]any)
				if len(choices) == 0 {
					break
				}
				if id == nil {
					id, created = e["id"], e["created"]
				}
				e["id"], e["created"] = id, created
				choices[0].(map[string]any)["index"] = float64(k)
				want = append(want, e)
			}
			next[k]++
			if (says == Finished) != (left == 0) {
				t.Fatalf("seed %d: says %d with %d left", seed, says, left)
			}
		}
		if usage {
			var p, c, cached int
			for k, s := range scripts {
				c += s.tokens
				if k%n == 0 {
					p, cached = p+s.prompt, cached+s.cached
				}
			}
			if id == nil {
				id, created = "cmpl-0", 1000.0
			}
			all := map[string]any{
				"prompt_tokens": float64(p), "completion_tokens": float64(c), "total_tokens": float64(p + c),
				"prompt_tokens_details": map[string]any{"cached_tokens": float64(cached), "other": nil},
			}
			reasoning, null := -1, false
			for _, s := range scripts {
				null = null || s.reasoning == -2
				if s.reasoning >= 0 {
					reasoning = max(reasoning, 0) + s.reasoning
				}
			}
			if reasoning >= 0 {
				all["completion_tokens_details"] = map[string]any{"reasoning_tokens": float64(reasoning)}
			} else if null {
				all["completion_tokens_details"] = nil
			}
			want = append(want, map[string]any{"id": id, "created": created, "model": "tiny", "choices": []any{}, "usage": all})
		}
		events := strings.Split(strings.TrimSuffix(string(got), "\n\n"), "\n\n")
		if last := events[len(events)-1]; last != "data: [DONE]" || strings.Count("\n"+string(got), "\ndata: [DONE]\n") != 1 {
			t.Fatalf("seed %d: the end is %q", seed, last)
		}
		var seen []map[string]any
		for _, e := range events[:len(events)-1] {
			var v map[string]any
			if err := json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &v); err != nil {
				t.Fatalf("seed %d: %q: %v", seed, e, err)
			}
			seen = append(seen, v)
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Fatalf("seed %d: -want +got\n%s", seed, diff)
		}
		if usage != strings.Contains(string(got), `"total_tokens"`) || !strings.Contains(string(got), "9223372036854775807") && len(want) > 1 {
			t.Fatalf("seed %d: %s", seed, got)
		}
	}
}

// TestFanMergeWhole joins answers that do not stream, whatever else they hold.
func TestFanMergeWhole(t *testing.T) {
	answer := func(k, prompt, tokens, cached int) []byte {
		return fmt.Appendf(nil, `{ "id":"cmpl-%d","object":"text_completion","choices":[ {"text":"t%d","index":0,"x":{"index":7},`+
			`"n":1.0e2} ],"created":%d,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}},`+
			`"metrics":{"a":1},"system_fingerprint":null}`, k, k, 100+k, prompt, prompt+tokens, tokens, cached)
	}
	m := NewMerger(2, 2)
	got, ok := m.Whole([][]byte{answer(0, 10, 1, 3), answer(1, 10, 2, 10), answer(2, 20, 3, 20), answer(3, 20, 4, 4)})
	want := `{ "id":"cmpl-0","object":"text_completion","choices":[{"text":"t0","index":0,"x":{"index":7},"n":1.0e2},` +
		`{"text":"t1","index":1,"x":{"index":7},"n":1.0e2},{"text":"t2","index":2,"x":{"index":7},"n":1.0e2},` +
		`{"text":"t3","index":3,"x":{"index":7},"n":1.0e2}],"created":100,"usage":{"prompt_tokens":30,"total_tokens":40,` +
		`"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":23}},"metrics":null,"system_fingerprint":null}`
	if diff := cmp.Diff(want, string(got)); diff != "" || !ok {
		t.Errorf("ok %v, -want +got\n%s", ok, diff)
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"choices":[]}`, `{"choices":[{"text":"a"}]}`, `{"choices":[{"index":0},{"index":1}]}`, `{"choices":[{"index":0}]`} {
		if out, ok := NewMerger(1, 2).Whole([][]byte{answer(0, 1, 1, 1), []byte(bad)}); ok {
			t.Errorf("%q was joined: %s", bad, out)
		}
	}
}

// TestFanMergeUsageOfAny sums usages that differ in what they tell.
func TestFanMergeUsageOfAny(t *testing.T) {
	for _, row := range []struct {
		name       string
		prompts, n int
		usages     []string // "": the answer has none
		want       string
	}{
		{"none", 1, 2, []string{"", "null"}, ""},
		{"null, then some", 1, 2, []string{"null", `{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}`},
			`{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}`},
		{"absent, then some", 1, 3, []string{"", `{"prompt_tokens":3,"completion_tokens":1}`, `{"prompt_tokens":3,"completion_tokens":5}`},
			`{"prompt_tokens":3,"completion_tokens":6}`},
		{"a member of the second", 1, 2, []string{`{ "completion_tokens":1 }`, `{"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":2}}`},
			`{ "completion_tokens":3 ,"completion_tokens_details":{"reasoning_tokens":2}}`},
		{"null in the first", 1, 2, []string{`{"completion_tokens_details":null,"a":null}`, `{"completion_tokens_details":{"reasoning_tokens":2},"a":7}`},
			`{"completion_tokens_details":{"reasoning_tokens":2},"a":7}`},
		{"deeper", 1, 3, []string{`{"d":{}}`, `{"d":{"x\"":1,"e":{"y":1}}}`, `{"d":{"z":5,"e":{"y":2,"w":3}}}`},
			`{"d":{"x\"":1,"e":{"y":3,"w":3},"z":5}}`},
		{"of the prompt", 2, 2, []string{`{"prompt_tokens":3}`, `{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}`,
			`{"prompt_tokens":4,"prompt_tokens_details":{"cached_tokens":1}}`, `{"prompt_tokens":4}`},
			`{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":1}}`},
		{"of the prompt whose first choice tells nothing", 2, 2, []string{`{"prompt_tokens":3,"total_tokens":3}`, "", "null", `{"prompt_tokens":4,"total_tokens":9,"completion_tokens":5}`},
			`{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5}`},
		{"a total that the first lacks", 1, 2, []string{`{"prompt_tokens":3}`, `{"total_tokens":5,"completion_tokens":2}`},
			`{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}`},
		{"no number", 1, 2, []string{`{"a":1.5,"b":"x","c":[1]}`, `{"a":1.5,"b":"y","c":[1],"d":"z"}`}, `{"a":1.5,"b":"x","c":[1],"d":"z"}`},
	} {
		var answers [][]byte
		m := NewMerger(row.prompts, row.n)
		var streamed []byte
		var says Outcome
		for k, u := range row.usages {
			if u != "" {
				u = `,"usage":` + u
			}
			answers = append(answers, []byte(`{"choices":[{"index":0}]`+u+`}`))
			_, says = m.Event(nil, k, []byte("data: {\"choices\":[]"+u+"}\n\n"))
			if says != Continues && u != "" {
				t.Errorf("%s: an event says %d", row.name, says)
			}
		}
		for k := range row.usages {
			streamed, says = m.Event(streamed, k, []byte("data: [DONE]\n\n"))
		}
		usageOf := func(p []byte) string {
			var v struct{ Usage json.RawMessage }
			if err := json.Unmarshal(p, &v); err != nil {
				t.Errorf("%s: %s: %v", row.name, p, err)
			}
			return strings.TrimPrefix(string(v.Usage), "null")
		}
		whole, ok := NewMerger(row.prompts, row.n).Whole(answers)
		if got := usageOf(whole); !ok || got != row.want {
			t.Errorf("%s, whole: %s; want %s", row.name, got, row.want)
		}
		event, _, _ := strings.Cut(string(streamed), "\n\n")
		got := ""
		if data := strings.TrimPrefix(event, "data: "); data != "[DONE]" {
			got = usageOf([]byte(data))
		}
		if says != Finished || got != row.want {
			t.Errorf("%s, streamed: %s; want %s", row.name, streamed, row.want)
		}
	}
}

// TestFanMergeFailures has an error event end the stream, and relays nothing that is no event of one choice.
func TestFanMergeFailures(t *testing.T) {
	m := NewMerger(1, 2)
	for _, row := range []struct {
		event string
		says  Outcome
		out   string
	}{
		{": still here\n\n", Continues, ": still here\n\n"},
		{"data: hello\n\n", Invalid, ""},
		{"data: {\"choices\":[{\"index\":0},{\"index\":1}]}\n\n", Invalid, ""},
		{"data: {\"choices\":[{\"index\":0}]}\ndata: {}\n\n", Invalid, ""},
		{"data: {\"error\":{\"message\":\"m\"}}\n\n", Failed, "data: {\"error\":{\"message\":\"m\"}}\n\n"},
		{"event: x\r\ndata:{\"choices\":[{\"index\":0}]}\r\n\r\n", Continues, "event: x\r\ndata:{\"choices\":[{\"index\":1}]}\r\n\r\n"},
	} {
		if out, says := m.Event(nil, 1, []byte(row.event)); says != row.says || string(out) != row.out {
			t.Errorf("%q: %d %q; want %d %q", row.event, says, out, row.says, row.out)
		}
	}
	m.Event(nil, 1, []byte("data: [DONE]\n\n"))
	if _, says := m.Event(nil, 1, []byte("data: {\"choices\":[{\"index\":0}]}\n\n")); says != Invalid {
		t.Errorf("behind the end: %d", says)
	}
}
