//go:build e2e

package e2e

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// state is one reading of both instances' counters.
type state struct {
	p, d  counters
	mover string
}

// scrape reads an instance's metrics.
func scrape(t *testing.T, url string) counters {
	t.Helper()
	body, err := read(t.Context(), url+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return parseCounters(body)
}

// must is the counter's value; a missing counter fails the test.
func must(t *testing.T, c counters, name string, labels ...string) float64 {
	t.Helper()
	v, found := c.sum(name, labels...)
	if !found {
		t.Fatalf("/metrics has no %s %v", name, labels)
	}
	return v
}

func (s state) computed(t *testing.T) float64 { return s.source(t, "local_compute") }

// source is the number of prompt tokens that decode had from that source.
func (s state) source(t *testing.T, source string) float64 {
	t.Helper()
	return must(t, s.d, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
}

// moved is the number of transfers made: writes by prefill or reads by decode.
func (s state) moved(t *testing.T) float64 {
	t.Helper()
	side := s.p
	if s.mover == "decode" {
		side = s.d
	}
	return must(t, side, "vllm:nixl_xfer_time_seconds_count")
}

// finished is the number of requests an instance has brought to an end of its own.
func finished(t *testing.T, c counters) float64 {
	t.Helper()
	return must(t, c, "vllm:request_success_total", `finished_reason="stop"`) + must(t, c, "vllm:request_success_total", `finished_reason="length"`)
}

// rested reads the counters until they stand still and agree, so that no transfer of the warm-up is counted later.
func rested(t *testing.T, look func() state) state {
	t.Helper()
	last := look()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		time.Sleep(2 * time.Second)
		now := look()
		if now.moved(t) > 0 && now.moved(t) == last.moved(t) && finished(t, now.p) == finished(t, last.p) {
			return now
		}
		last = now
	}
	t.Fatal("the pair does not come to rest after its warm-up")
	return last
}

// settled reads the counters until the transfers of n requests are in them, which takes the engine another step or
// two, and returns the last reading whatever it is.
func settled(t *testing.T, look func() state, before state, n int) state {
	t.Helper()
	for end := time.Now().Add(slow); ; time.Sleep(500 * time.Millisecond) {
		if s := look(); s.moved(t)-before.moved(t) >= float64(n) || time.Now().After(end) {
			return s
		}
	}
}

// check compares what the counters grew by with what was asked.
func (s state) check(t *testing.T, before state, asked report) {
	t.Helper()
	n := float64(asked.HandOffs)
	external := s.source(t, "external_kv_transfer") - before.source(t, "external_kv_transfer")
	cached := s.source(t, "local_cache_hit") - before.source(t, "local_cache_hit")
	computed := s.computed(t) - before.computed(t)
	t.Logf("%d hand-offs of %d prompt tokens: decode had %v by external_kv_transfer, %v by local_cache_hit, %v by local_compute; %s counts %v transfers",
		asked.HandOffs, asked.PromptTokens, external, cached, computed, s.mover, s.moved(t)-before.moved(t))
	// An instance computes at most the last token of a prompt again, to have something to sample from.
	if computed > n {
		t.Errorf("decode computed %v prompt tokens itself; want at most one for each of %v hand-offs", computed, n)
	}
	if got := external + cached + computed; got != float64(asked.PromptTokens) {
		t.Errorf("decode accounts for %v prompt tokens; want %d", got, asked.PromptTokens)
	}
	if external <= cached || external < n {
		t.Errorf("external_kv_transfer rose by %v tokens, local_cache_hit by %v; the prompts did not come from prefill", external, cached)
	}
	s.each(t, before, asked)
}

// each checks that every hand-off was one request to each instance, and one transfer.
func (s state) each(t *testing.T, before state, asked report) {
	t.Helper()
	for name, got := range map[string]float64{
		"transfers":                    s.moved(t) - before.moved(t),
		"requests finished by prefill": finished(t, s.p) - finished(t, before.p),
		"requests finished by decode":  finished(t, s.d) - finished(t, before.d),
	} {
		if got != float64(asked.HandOffs) {
			t.Errorf("%s: %v; want one for each of %d hand-offs", name, got, asked.HandOffs)
		}
	}
}

func unused(t *testing.T, e engine) bool {
	t.Helper()
	return must(t, scrape(t, e.url), "vllm:kv_cache_usage_perc") == 0
}

// quiet checks that nothing was left behind: no leases ran out, nothing failed, no block is held on either side. Of each
// client that left prefill may have been told once what decode had taken already: it makes nothing of that. late is how often decode was
// told what prefill would not write any more, as its lease had ended.
func (s state) quiet(t *testing.T, left, late int) {
	t.Helper()
	if late := must(t, s.p, "vllm:nixl_num_notifications_after_expiry_total"); late > float64(left) {
		t.Errorf("prefill was told %v times what it knew, for %d clients that left", late, left)
	}
	for side, c := range map[string]counters{"prefill": s.p, "decode": s.d} {
		for _, name := range []string{
			"vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_notifications_total",
			"vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting",
		} {
			allowed := 0
			if name == "vllm:nixl_num_kv_expired_reqs_total" && side == "prefill" {
				allowed = late
			}
			if got := must(t, c, name); got > float64(allowed) {
				t.Errorf("%s: %s is %v; want %d at most", side, name, got, allowed)
			}
		}
	}
	if t.Failed() {
		telling := []string{"vllm:nixl", "vllm:num_requests", "vllm:request_success", "vllm:prompt_tokens_by_source", "vllm:kv_cache_usage"}
		for side, c := range map[string]counters{"prefill": s.p, "decode": s.d} {
			for _, series := range slices.Sorted(maps.Keys(c)) {
				if c[series] != 0 && !strings.Contains(series, "_bucket") && !strings.Contains(series, "_created") &&
					slices.ContainsFunc(telling, func(name string) bool { return strings.HasPrefix(series, name) }) {
					t.Logf("%s %s %v", side, series, c[series])
				}
			}
		}
	}
}

// compared is compare over a pair of engines, and returns the state from before. A machine that stalls for longer than a transfer may
// take has requests retried, which are then served in another way and counted twice by the engines: every answer must be right all the
// same, but how they were served is compared in another round, in which the gateway retries none.
func (g gateway) compared(t *testing.T, look func() state, python, answers string, kinds ...string) (report, state) {
	t.Helper()
	for round := 1; ; round++ {
		late, before := g.late(t), rested(t, look)
		r, err := tryCompare(t, g.url, python, answers, kinds...)
		switch now := g.late(t); {
		case now == late && err != nil, now != late && round == 3:
			t.Fatalf("round %d, %d transfers were late: %v", round, now-late, err)
		case now == late:
			return r, before
		default:
			t.Logf("round %d: %d transfers were late", round, now-late)
		}
	}
}

// late is how many transfers the gateway has given up.
func (g gateway) late(t *testing.T) int {
	t.Helper()
	log, err := os.ReadFile(g.log)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(log, []byte(`"reason":"transfer_timeout","transfer_id"`))
}
