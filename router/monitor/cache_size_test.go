package monitor

import (
	"strings"
	"testing"

	"pdrouter/router/fleet"
)

// TestParseCacheSize reads what engines say of their prefix caches.
func TestParseCacheSize(t *testing.T) {
	const vllm = `# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0",mamba_block_size="7",num_gpu_blocks="100",num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="200"} 1.0
`
	for _, row := range []struct {
		text, label string
		want        fleet.CacheSize
	}{
		{vllm, "", fleet.CacheSize{Blocks: 300, BlockTokens: 32}},
		{vllm, `engine="1"`, fleet.CacheSize{Blocks: 200, BlockTokens: 32}},
		{vllm, `engine="2"`, fleet.CacheSize{}},
		{`vllm:cache_config_info{mamba_block_size="7",block_size="16",engine="0",num_gpu_blocks="9"} 1.0`, "", fleet.CacheSize{Blocks: 9, BlockTokens: 16}},
		{`vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0`, "", fleet.CacheSize{}},
		{`vllm:cache_config_info{block_size="16",num_gpu_blocks="-9"} 1.0`, "", fleet.CacheSize{}},
		{`vllm:cache_config_info{block_size="16",num_gpu_blocks="9223372036854775807"} 1.0`, "", fleet.CacheSize{}},
		{strings.Repeat("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9223372036854775807\"} 1.0\n", 2), "", fleet.CacheSize{}},
		{`vllm:cache_config_info{block_size="4294967295",num_gpu_blocks="4294967295"} 1.0`, "", fleet.CacheSize{}},
		{"sglang:max_total_num_tokens{tp_rank=\"0\"} 471258.0\nsglang:max_total_num_tokens{tp_rank=\"1\"} 471258.0\nsglang:page_size{tp_rank=\"0\"} 64.0\n", "", fleet.CacheSize{Blocks: 7363, BlockTokens: 64}},
		{"sglang:max_total_num_tokens 1000\n", "", fleet.CacheSize{Blocks: 1000, BlockTokens: 1}},
		{"sglang:max_total_num_tokens NaN\nsglang:max_total_num_tokens\n", "", fleet.CacheSize{}},
		{"", "", fleet.CacheSize{}},
	} {
		if got := parseCacheSize([]byte(row.text), row.label); got != row.want {
			t.Errorf("%q: %+v; want %+v", row.text, got, row.want)
		}
	}
}
