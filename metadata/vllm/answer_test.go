package vllm

import (
	"maps"
	"strings"
	"testing"

	"pdrouter/internal/golden"
	"pdrouter/metadata"
)

// recorded are answers of real engines.
func recorded(t testing.TB) map[string][]byte { return golden.Recorded(t, "testdata/*.msgpack") }

// TestRecordedAnswers reads what real engines have answered.
func TestRecordedAnswers(t *testing.T) {
	answers := recorded(t)
	compat := map[string]string{}
	for name, b := range answers {
		rec, err := parse(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compat[name] = rec.Compatibility
		l := rec.Layout
		if len(rec.Compatibility) != 64 || len(rec.EngineID) < 32 || len(rec.Blob) < 100 {
			t.Errorf("%s: compatibility %q, engine %q, %d bytes of agent", name, rec.Compatibility, rec.EngineID, len(rec.Blob))
		}
		if l.BlockTokens != 32 || l.Physical != 1 || l.Order == "" || len(l.Regions) == 0 || l.Regions[0].Base == 0 || l.Regions[0].Length == 0 {
			t.Errorf("%s: layout %+v", name, l)
		}
		rec.Incarnation, rec.Role, rec.Size = metadata.Incarnation{Engine: name, Generation: 1}, metadata.Both, metadata.Rank{DP: 1, PP: 1, TP: 1}
		if err := rec.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if compat["push-prefill"] != compat["push-decode"] || compat["push-prefill"] == compat["pull-prefill"] {
		t.Errorf("compatibility %v; want one of both that push, and another of those that pull", compat)
	}
}

// TestLenient: what this version does not know passes, and what describes memory in another way is left out.
func TestLenient(t *testing.T) {
	good := map[string]any{
		"engine_id": "id", "agent_metadata": []byte("agent"), "kv_caches_base_addr": []uint64{4096}, "device_id": 0, "num_blocks": 10,
		"block_lens": []int{64}, "kv_cache_layout": "NHD", "block_size": 16, "physical_blocks_per_logical_kv_block": 1,
	}
	for _, row := range []struct {
		name    string
		change  map[string]any
		regions int
		err     string
	}{
		{"an older engine without strides", nil, 1, ""},
		{"a newer layout", map[string]any{"kv_cache_layout": "HND_2"}, 1, ""},
		{"regions of their own sizes", map[string]any{"region_num_blocks": []int{5}}, 1, ""},
		{"addresses in another shape", map[string]any{"kv_caches_base_addr": [][]int{{1}, {2}}}, 0, ""},
		{"fewer lengths than addresses", map[string]any{"block_lens": []int{}}, 0, ""},
		{"no blocks", map[string]any{"num_blocks": 0}, 0, ""},
		{"an address at the end of memory", map[string]any{"kv_caches_base_addr": []uint64{1<<64 - 1}}, 0, ""},
		{"a negative length", map[string]any{"block_lens": []int{-1}}, 0, ""},
		{"no engine id", map[string]any{"engine_id": nil}, 0, "engine_id"},
		{"a number as engine id", map[string]any{"engine_id": 7}, 0, "engine_id"},
		{"a long engine id", map[string]any{"engine_id": strings.Repeat("a", metadata.MaxText+1)}, 0, "engine_id"},
		{"no agent", map[string]any{"agent_metadata": []byte{}}, 0, "agent_metadata"},
		{"a large agent", map[string]any{"agent_metadata": make([]byte, metadata.MaxBlob+1)}, 0, "agent_metadata"},
	} {
		agent := maps.Clone(good)
		maps.Copy(agent, row.change)
		rec, err := parse(payload("digest", agent))
		if row.err != "" {
			if err == nil || !strings.Contains(err.Error(), row.err) {
				t.Errorf("%s: error %v; want one about %s", row.name, err, row.err)
			}
			continue
		}
		if err != nil || len(rec.Layout.Regions) != row.regions {
			t.Errorf("%s: %v, layout %+v; want %d regions", row.name, err, rec.Layout, row.regions)
		}
	}
}

// TestBlocksOfKernels: an engine whose kernel has smaller blocks than its cache tells of the kernel's, and how many of them a block has.
func TestBlocksOfKernels(t *testing.T) {
	rec, err := parse(payload("digest", map[string]any{
		"engine_id": "id", "agent_metadata": []byte("agent"), "kv_caches_base_addr": []uint64{4096, 8192}, "num_blocks": 40,
		"block_lens": []int{640, 640}, "kv_cache_layout": "NHD", "block_size": 64, "physical_blocks_per_logical_kv_block": 4,
	}))
	if err != nil || rec.Layout.BlockTokens != 256 || rec.Layout.Physical != 4 {
		t.Fatalf("%v, layout %+v; want blocks of 256 tokens", err, rec.Layout)
	}
	if got := metadata.TokenBytes([]metadata.Record{rec, rec}); got != 40 { // two ranks, two regions, 640 bytes for 64 tokens
		t.Errorf("a token takes %v bytes; want 40", got)
	}
}

// FuzzAnswer: whatever an engine answers, it is refused or gives a record within the bounds.
func FuzzAnswer(f *testing.F) {
	for _, b := range recorded(f) {
		f.Add(b)
	}
	f.Add(payload("digest", map[string]any{"engine_id": "id", "agent_metadata": []byte("a"), "kv_caches_base_addr": []uint64{1}, "block_lens": []uint64{1}, "num_blocks": 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parse(b)
		if err != nil {
			return
		}
		rec.Incarnation, rec.Role, rec.Size = metadata.Incarnation{Engine: "e", Generation: 1}, metadata.Both, metadata.Rank{DP: 1, PP: 1, TP: 1}
		if _, err := metadata.Marshal(rec); err != nil {
			t.Error(err)
		}
		if err := rec.Validate(); err != nil {
			t.Error(err)
		}
	})
}
