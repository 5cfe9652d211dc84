package refengine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// noteAdapters notes which adapters have sequences at this moment, as the labels of vllm:lora_requests_info. Adapters change no answers here and
// need no memory, so no sequence waits for one: they are for what the engine says of itself.
func (e *Engine) noteAdapters() {
	if len(e.cfg.Adapters) == 0 {
		return
	}
	names := func(of []*Sequence) string {
		set := map[string]bool{}
		for _, s := range of {
			if s.req.Adapter != "" {
				set[s.req.Adapter] = true
			}
		}
		return strings.Join(slices.Sorted(maps.Keys(set)), ",")
	}
	labels := fmt.Sprintf("max_lora=\"%d\",running_lora_adapters=%q,waiting_lora_adapters=%q", e.cfg.AdapterSlots, names(e.running), names(e.waiting))
	e.counts.adapters[labels] = float64(time.Now().UnixMicro()) / 1e6
}

// adapterMetric writes the moments that were noted. Stock vLLM has the metric from the first step on.
func (e *Engine) adapterMetric(w *strings.Builder) {
	if e.counts.steps == 0 || len(e.cfg.Adapters) == 0 {
		return
	}
	e.noteAdapters()
	var lines []series
	for _, labels := range slices.Sorted(maps.Keys(e.counts.adapters)) {
		lines = append(lines, series{labels, e.counts.adapters[labels]})
	}
	metric(w, "vllm:lora_requests_info", "gauge", "The time at which these adapters had sequences, as vLLM says it.", lines...)
}
