package router

import (
	"context"
	"testing"
	"time"

	"pdrouter/router/connector"
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
	const info = `vllm:cache_config_info{block_size="32",engine="0",num_cpu_blocks="7",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="32",engine="1",num_cpu_blocks="7",num_gpu_blocks="100"} 1.0
`
	for _, row := range []struct {
		text  string
		want  load
		ok    bool
		label string
	}{
		{"# HELP vllm:num_requests_running n\nvllm:num_requests_running{engine=\"0\",model_name=\"a} 9\"} 2.0\nvllm:num_requests_waiting{engine=\"0\"} 1.0\n", load{running: 2, waiting: 1, used: -1}, true, ""},
		{"vllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_running{engine=\"1\"} 3.0\nvllm:num_requests_waiting 0", load{running: 3, used: -1}, true, ""},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting_by_reason{reason=\"deferred\"} 4\n", load{}, false, ""},
		{"vllm:num_requests_waiting 0\n", load{}, false, ""},
		{"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", load{}, false, ""},
		{"", load{}, false, ""},
		{ranks, load{running: 3, waiting: 4, used: -1}, true, ""},
		{ranks, load{waiting: 4}, true, `engine="0"`},
		{ranks, load{running: 3, used: -1}, true, `engine="1"`},
		{ranks + info, load{running: 3, waiting: 4, used: 50}, true, ""},
		{ranks + info, load{running: 3, used: 25}, true, `engine="1"`},
		{ranks, load{}, false, `engine="2"`},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\n", load{}, true, ""},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"1\"} 1e-4\n", load{used: -1}, true, ""},
	} {
		if got, ok := parseLoad([]byte(row.text), row.label); ok != row.ok || ok && got != row.want {
			t.Errorf("%q: %+v, %v; want %+v, %v", row.text, got, ok, row.want, row.ok)
		}
	}
}

// TestLoadIsSeenForAll has the first of two who look at one engine's load go while the look is under way: the other has what it brings.
func TestLoadIsSeenForAll(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, connector.NamePush, nil)
		d := s.d[0]
		d.mu.Lock()
		d.tells = 500 * time.Millisecond
		d.mu.Unlock()
		looks := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.looks
		}
		e := g.r.Debug().Engine("decode-0")
		first, leave := context.WithCancel(t.Context())
		ended := make(chan bool, 2)
		see := func(ctx context.Context) { ended <- e.Load(ctx) }
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

// TestStrandedIsCountedAgain: an engine is said to hold no more blocks for nobody than it uses, as it says at two health checks in a row.
// What it is known to hold is said no more once it uses none.
func TestStrandedIsCountedAgain(t *testing.T) {
	unhurried(t, "push", func(t *testing.T) {
		s, g, _ := reclaiming(t, connector.NamePush, nil)
		d, e := s.d[0], g.r.Debug().Engine("decode-0")
		says := func(usage string) {
			d.mu.Lock()
			d.usage = usage
			d.mu.Unlock()
		}
		check := func(when string, known, unresolved int) {
			t.Helper()
			held, stats := 0, g.stateOf("decode-0")
			for _, n := range stats.Stranded {
				held += n
			}
			if n := stats.Unresolved; held != known || n != unresolved {
				t.Errorf("%s: %d blocks held, %d may be; want %d and %d", when, held, n, known, unresolved)
			}
		}
		e.Strand(StrandMay, 100, false)
		e.Strand(StrandMay, 43, true)
		e.Strand(StrandUntold, 2, false)
		time.Sleep(10 * time.Second)
		check("it does not say", 2, 143)
		says("0.02") // of 100 blocks
		time.Sleep(10 * time.Second)
		check("it uses 2 blocks", 2, 2)
		if said, used := e.Recount(t.Context(), 3); said != 4 || used != 2 {
			t.Errorf("the look has shown %d, %d", said, used)
		}
		says("0.0")
		if e.Recount(t.Context(), 3); e.Leaked() != 4 {
			t.Error("forgotten though more has come since it said so")
		}
		time.Sleep(10 * time.Second)
		check("it uses none", 0, 0)
	})
}
