package router

import (
	"context"
	"testing"
	"time"
)

// TestParseLoad reads what engines say, and takes nothing for an answer that is none.
func TestParseLoad(t *testing.T) {
	const ranks = `vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
`
	for _, row := range []struct {
		text  string
		want  load
		ok    bool
		label string
	}{
		{"# HELP vllm:num_requests_running n\nvllm:num_requests_running{engine=\"0\",model_name=\"a} 9\"} 2.0\nvllm:num_requests_waiting{engine=\"0\"} 1.0\n", load{running: 2, waiting: 1}, true, ""},
		{"vllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_running{engine=\"1\"} 3.0\nvllm:num_requests_waiting 0", load{running: 3}, true, ""},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting_by_reason{reason=\"deferred\"} 4\n", load{}, false, ""},
		{"vllm:num_requests_waiting 0\n", load{}, false, ""},
		{"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", load{}, false, ""},
		{"", load{}, false, ""},
		{ranks, load{running: 3, waiting: 4}, true, ""},
		{ranks, load{waiting: 4, unused: true}, true, `engine="0"`},
		{ranks, load{running: 3}, true, `engine="1"`},
		{ranks, load{}, false, `engine="2"`},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\n", load{unused: true}, true, ""},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"1\"} 1e-4\n", load{}, true, ""},
	} {
		if got, ok := parseLoad([]byte(row.text), row.label); ok != row.ok || ok && got != row.want {
			t.Errorf("%q: %+v, %v; want %+v, %v", row.text, got, ok, row.want, row.ok)
		}
	}
}

// TestLoadIsSeenForAll has the first of two who look at one engine's load go while the look is under way: the other has what it brings.
func TestLoadIsSeenForAll(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, ConnectorPush, nil)
		d := s.d[0]
		d.mu.Lock()
		d.tells = 500 * time.Millisecond
		d.mu.Unlock()
		looks := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.looks
		}
		e := g.r.now().fleet.engine("decode-0")
		first, leave := context.WithCancel(t.Context())
		ended := make(chan bool, 2)
		see := func(ctx context.Context) { _, ok := g.r.loadOf(ctx, e); ended <- ok }
		go see(first)
		eventually(t, "somebody looks", func() bool { return looks() == 1 })
		go func() {
			time.Sleep(50 * time.Millisecond)
			leave()
		}()
		see(t.Context())
		if one, two := <-ended, <-ended; one || !two {
			t.Errorf("they know: %v, %v; want the second alone", one, two)
		}
	})
}

// TestStrandedIsCountedAgain: what is said to stay held with an engine is said no more once the engine has twice none of its KV cache
// in use, and as long as it has.
func TestStrandedIsCountedAgain(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, ConnectorPush, nil)
		d, e := s.d[0], g.r.now().fleet.engine("decode-0")
		says := func(usage string) {
			d.mu.Lock()
			d.usage = usage
			d.mu.Unlock()
		}
		g.r.left.strand(e, strandMay, 7, false, time.Now())
		for _, usage := range []string{"", "0.01"} {
			says(usage)
			time.Sleep(time.Minute)
			if n := g.r.left.blocks(e, time.Now()); n != 7 {
				t.Errorf("usage %q: %d blocks; want 7", usage, n)
			}
		}
		if n := g.r.recount(t.Context(), e, 7); n != 0 || g.r.left.blocks(e, time.Now()) != 7 {
			t.Errorf("forgotten though they are in use: %d", n)
		}
		says("0.0")
		if n := g.r.recount(t.Context(), e, 6); n != 7 || g.r.left.blocks(e, time.Now()) != 7 {
			t.Errorf("forgotten though more has come since it said so: %d", n)
		}
		time.Sleep(time.Minute)
		if n := g.r.left.blocks(e, time.Now()); n != 0 {
			t.Errorf("%d blocks; want none", n)
		}
	})
}
