//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// came adds up what the engines' metrics say that came, or went, in this way.
func came(t *testing.T, engines []*member, name string, labels ...string) (n float64) {
	t.Helper()
	for _, m := range engines {
		v, _ := scrape(t, m.url).sum(name, labels...) // a label that nothing was counted for is not there
		n += v
	}
	return n
}

// bySource is how many tokens of prompts the engines have computed, had, and were handed.
func bySource(t *testing.T, engines ...*member) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, source := range []string{"external_kv_transfer", "local_compute", "local_cache_hit"} {
		out[source] = came(t, engines, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
	}
	return out
}

// compare asks the scenarios, and compares the engines' counters with what was asked.
func (w *plane) compare(t *testing.T) {
	t.Helper()
	prefill, decode := w.prefill, w.decode
	look := func() map[string]float64 {
		w.rests(t)
		out := map[string]float64{
			"released": came(t, decode, "pdrouter_plane_transfers_total", `ending="released"`),
			"freed":    came(t, prefill, "pdrouter_plane_transfers_total", `ending="freed"`),
			"refused":  came(t, w.all(), "pdrouter_plane_refused_total"),
			"bytes":    came(t, prefill, "pdrouter_plane_written_bytes_total"),
		}
		maps.Copy(out, bySource(t, decode...))
		return out
	}
	w.forget(t)
	before, each := look(), map[*member]float64{}
	for _, m := range w.all() {
		each[m] = came(t, []*member{m}, "pdrouter_plane_transfers_total")
	}
	var asked report
	w.step(t, "compare split requests", func() { asked = compare(t, w.front.url, w.python(), w.answers, "split", "fan") })
	after := look()
	grew := func(name string) float64 { return after[name] - before[name] }
	n := float64(asked.HandOffs)
	// With sliding windows decode computes the last token of a prompt, and all of one that is handed over too short.
	recomputes := strings.HasPrefix(w.kind, "window")
	t.Logf("%d hand-offs of %d prompt tokens: decode had %v by external_kv_transfer, %v by local_cache_hit, %v by local_compute; %v bytes",
		asked.HandOffs, asked.PromptTokens, grew("external_kv_transfer"), grew("local_cache_hit"), grew("local_compute"), grew("bytes"))
	for name, want := range map[string]float64{"released": n, "freed": n, "refused": 0, "local_compute": 0} {
		if got := grew(name); got != want && !(recomputes && name != "refused" && got > n*3/4) {
			t.Errorf("%s: %v; want %v for %v hand-offs", name, got, want, n)
		}
	}
	if got := grew("external_kv_transfer") + grew("local_cache_hit") + grew("local_compute"); got != float64(asked.PromptTokens) {
		t.Errorf("decode accounts for %v prompt tokens; want %d", got, asked.PromptTokens)
	}
	if grew("external_kv_transfer") <= grew("local_cache_hit") || grew("bytes") == 0 {
		t.Errorf("the prompts did not come from prefill: %v", after)
	}
	for _, m := range w.all() {
		if came(t, []*member{m}, "pdrouter_plane_transfers_total") == each[m] {
			t.Errorf("%s had no part in it", m.name)
		}
	}
	w.step(t, "compare requests for decode alone", func() { compare(t, w.front.url, w.python(), w.answers, "alone") })
	after, before = look(), after
	if grew("local_compute") == 0 || grew("released") != 0 {
		t.Errorf("decode alone: local_compute rose by %v tokens, transfers by %v; the counters prove nothing", grew("local_compute"), grew("released"))
	}
	w.counted(t)
}

// rests waits until no engine has a block in use.
func (w *plane) rests(t *testing.T) {
	t.Helper()
	until(t, 30*time.Second, "no block is held", func() bool {
		return !slices.ContainsFunc(w.all(), func(m *member) bool { return !unused(t, m.engine) })
	})
}

// forget has the engines forget the prefixes that they have computed, so that what is asked again is handed over again.
func (w *plane) forget(t *testing.T) {
	t.Helper()
	w.rests(t)
	for _, m := range w.all() {
		if !m.forget(t) {
			t.Fatalf("%s does not forget its prefixes", m.name)
		}
	}
}

// forget asks the engine to forget the prefixes that it has computed; it may refuse while it works.
func (e engine) forget(t *testing.T) bool {
	t.Helper()
	a, err := http.Post(e.url+"/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	return a.StatusCode == http.StatusOK
}

// counted has one request, and reads from the gateway that every consumer's completions were counted.
func (w *plane) counted(t *testing.T) {
	t.Helper()
	id := fmt.Sprintf("counted-%d-%d", len(w.prefill), w.prefill[0].tp)
	q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.front.url+"/v1/completions",
		strings.NewReader(`{"model":"tiny","prompt":"how many have been counted of how many","max_tokens":4,"temperature":0}`))
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Request-Id", id)
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	var page struct {
		Books struct {
			Counted map[string]string
			Ready   bool
			Bytes   uint64
		}
	}
	until(t, 20*time.Second, "the gateway has the books of a request", func() bool {
		body, err := read(t.Context(), w.front.operations+"/requests?id="+id)
		return err == nil && json.Unmarshal(body, &page) == nil && page.Books.Ready && page.Books.Bytes > 0
	})
	if len(page.Books.Counted) != w.decode[0].tp {
		t.Errorf("counted %v; want one line for each of %d consumers", page.Books.Counted, w.decode[0].tp)
	}
	for rank, of := range page.Books.Counted { // decode has one rank, so every rank of prefill writes to it
		if want := fmt.Sprintf("%d/%[1]d", w.prefill[0].tp); of != want {
			t.Errorf("rank %s: counted %s; want %s", rank, of, want)
		}
	}
	t.Logf("completions counted by consumer: %v", page.Books.Counted)
}

// quiet checks that no engine of the plane has anything left.
func (w *plane) quiet(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		var left []string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if left = m.series(t, "pdrouter_plane_held", "pdrouter_plane_pinned", "pdrouter_plane_quarantined", "pdrouter_plane_legs"); len(left) == 0 {
				break
			}
		}
		if len(left) > 0 {
			t.Errorf("%s still has %q", m.name, left)
		}
	}
}

// series lists what the engine's metrics say of these, but for what is 0.
func (m *member) series(t *testing.T, names ...string) (out []string) {
	t.Helper()
	for series, v := range scrape(t, m.url) {
		if v != 0 && !strings.Contains(series, "_created") && slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(series, n) }) {
			out = append(out, fmt.Sprintf("%s %v", strings.TrimPrefix(series, "pdrouter_plane_"), v))
		}
	}
	slices.Sort(out)
	return out
}

// tell logs how transfers have ended and what is held, and why.
func (w *plane) tell(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		for _, line := range m.series(t, "pdrouter_plane_transfers_total", "pdrouter_plane_refused", "pdrouter_plane_quarantined") {
			t.Logf("%s: %s", m.name, line)
		}
	}
}
