package monitor

import (
	"bytes"
	"fmt"
	"testing"
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
		want  Load
		ok    bool
		label string
	}{
		{"# HELP vllm:num_requests_running n\nvllm:num_requests_running{engine=\"0\",model_name=\"a} 9\"} 2.0\nvllm:num_requests_waiting{engine=\"0\"} 1.0\n", Load{Running: 2, Waiting: 1, computed: -1, used: -1, KVUse: -1, held: -1}, true, ""},
		{"vllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_running{engine=\"1\"} 3.0\nvllm:num_requests_waiting 0", Load{Running: 3, computed: -1, used: -1, KVUse: -1, held: -1}, true, ""},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting_by_reason{reason=\"deferred\"} 4\n", Load{}, false, ""},
		{"vllm:num_requests_waiting 0\n", Load{}, false, ""},
		{ranks + "vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 1.0\nvllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"deferred\"} 3.0\n" +
			"vllm:prompt_tokens_by_source_total{engine=\"0\",source=\"local_compute\"} 5e+12\nvllm:prompt_tokens_by_source_total{engine=\"1\",source=\"local_compute\"} 7.0\n" +
			"vllm:prompt_tokens_by_source_total{engine=\"0\",source=\"local_cache_hit\"} 11.0\nvllm:prompt_tokens_by_source_created{engine=\"0\",source=\"local_compute\"} 1.7e+09\n",
			Load{Running: 3, Waiting: 4, deferred: 3, computed: 5e12 + 7, used: -1, KVUse: .125, held: -1}, true, ""},
		{"vllm:num_requests_running 1e18\nvllm:num_requests_waiting 0\n", Load{}, false, ""},
		{"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", Load{}, false, ""},
		{"", Load{}, false, ""},
		{ranks, Load{Running: 3, Waiting: 4, computed: -1, used: -1, KVUse: .125, held: -1}, true, ""},
		{ranks, Load{Waiting: 4, computed: -1}, true, `engine="0"`},
		{ranks, Load{Running: 3, computed: -1, used: -1, KVUse: .25, held: -1}, true, `engine="1"`},
		{ranks + info, Load{Running: 3, Waiting: 4, computed: -1, used: 50, KVUse: .125, held: 1600}, true, ""},
		{ranks + info, Load{Running: 3, computed: -1, used: 25, KVUse: .25, held: 800}, true, `engine="1"`},
		{ranks, Load{}, false, `engine="2"`},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\n", Load{computed: -1}, true, ""},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"1\"} 1e-4\n", Load{computed: -1, used: -1, KVUse: 5e-5, held: -1}, true, ""},
	} {
		if got, ok := parseLoad([]byte(row.text), row.label); ok != row.ok || ok && got != row.want {
			t.Errorf("%q: %+v, %v; want %+v, %v", row.text, got, ok, row.want, row.ok)
		}
	}
}

// BenchmarkParseLoad reads as much as vLLM says in its metrics.
func BenchmarkParseLoad(b *testing.B) {
	var text bytes.Buffer
	for i := range 900 {
		fmt.Fprintf(&text, "vllm:request_prefill_time_seconds_bucket{engine=\"0\",le=\"%d.0\",model_name=\"Qwen/Qwen3-32B\"} 12345.0\n", i)
	}
	text.WriteString("vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"0\"} 3\n")
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if _, ok := parseLoad(text.Bytes(), ""); !ok {
			b.Fatal("no load")
		}
	}
}
