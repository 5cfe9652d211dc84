package monitor

import (
	"bytes"
	"net/http"
	"strconv"

	"pdrouter/router/fleet"
	"pdrouter/router/upstream"
)

// maxMetrics is how much of an engine's metrics is read.
const maxMetrics = 16 << 20

// askCacheSize asks an engine how much its prefix cache holds, where that matters: once for each run, as it does not change. known says that it has
// answered; it reports that.
func (m *Monitor) askCacheSize(its *upstream.Timeouts, e *fleet.Engine, known bool) bool {
	if known || !m.current().Fleet.UsesCacheSize(e) {
		return known
	}
	held := its.Begin(m.current().Timeouts.SideChannelAnswer())
	defer its.End()
	status, text, err := Get(held, e, "/metrics", maxMetrics)
	switch {
	case err != nil || status >= 500 || status == http.StatusTooManyRequests:
		return false
	case status != http.StatusOK: // it has none
		return true
	}
	if size := parseCacheSize(text, e.SchedulerLabel()); size != e.CacheSize() {
		e.SetCacheSize(size)
		m.log.Info("engine's prefix cache", "engine", e.Name, "blocks", size.Blocks, "block_tokens", size.BlockTokens)
	}
	return true
}

// mostCacheTokens is the largest cache that an engine is believed to have.
const mostCacheTokens = 1 << 31

// parseCacheSize reads the size of the cache from an engine's metrics: of vLLM the sum over its schedulers, or that of the one with the label; of
// SGLang the largest that one of its ranks tells. It is zero if the engine does not say.
func parseCacheSize(text []byte, label string) fleet.CacheSize {
	var s fleet.CacheSize
	tokens, page := 0, 1
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte("vllm:cache_config_info{")) && bytes.Contains(line, []byte(label)):
			if blocks, size := labelled(line, "num_gpu_blocks"), labelled(line, "block_size"); blocks > 0 && size > 0 {
				s.Blocks, s.BlockTokens = s.Blocks+blocks, size
			}
		default:
			if v, ok := sampleOf(line, "sglang:max_total_num_tokens", ""); ok && v < mostCacheTokens {
				tokens = max(tokens, int(v))
			}
			if v, ok := sampleOf(line, "sglang:page_size", ""); ok && v < mostCacheTokens {
				page = max(page, int(v))
			}
		}
	}
	if s.Blocks == 0 && tokens > 0 {
		s = fleet.CacheSize{Blocks: tokens / page, BlockTokens: page}
	}
	if s.Blocks > mostCacheTokens || s.BlockTokens > mostCacheTokens || s.Tokens() > mostCacheTokens {
		return fleet.CacheSize{}
	}
	return s
}

// labelled is the number that a sample's label has as its value; 0 if it has none, or one that no cache has.
func labelled(line []byte, name string) int {
	n, err := strconv.Atoi(labelText(line, name))
	if err != nil || n < 0 || n > mostCacheTokens { // so that sums do not overflow
		return 0
	}
	return n
}

// labelText is the value of a sample's label as it is written, up to a quotation mark; "" if it has no such label.
func labelText(line []byte, name string) string {
	for rest := line; ; {
		at := bytes.Index(rest, []byte(name+`="`))
		if at < 1 {
			return ""
		}
		before := rest[at-1]
		rest = rest[at+len(name)+2:]
		if before != '{' && before != ',' { // the end of another label's name
			continue
		}
		value, _, _ := bytes.Cut(rest, []byte{'"'})
		return string(value)
	}
}
