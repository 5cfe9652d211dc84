package refengine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Where a prompt's tokens came from.
const (
	sourceExternal = iota // another engine wrote them
	sourceCompute         // computed here
	sourceCache           // found in the prefix cache
	sources
)

func sourceName(s int) string {
	return [sources]string{"external_kv_transfer", "local_compute", "local_cache"}[s]
}

// counts is what an engine has done since its start. Its goroutine owns it.
type counts struct {
	prompt    [sources]uint64
	generated uint64
	steps     uint64
	expired   int
	early     int
	finished  map[string]uint64  // sequences by their end
	transfers map[string]uint64  // hand-offs by their end
	tickets   map[string]uint64  // legs refused for their ticket, by what was wrong with it
	adapters  map[string]float64 // when adapters last had sequences, in Unix seconds; see noteAdapters
}

func newCounts() counts {
	return counts{finished: map[string]uint64{}, transfers: map[string]uint64{}, tickets: map[string]uint64{}, adapters: map[string]float64{}}
}

// Books is a snapshot of an engine's blocks and requests.
type Books struct {
	Blocks      int // of each rank
	Free        int // used by nobody; the prefix cache's count as free
	Held        int // finished prompts that another engine has yet to take
	Quarantined int // reserved for transfers that failed, until nothing can land in them
	Receiving   int // decode legs that wait for their prompt
	Waiting     int
	Running     int
	Hanging     int // a fault
	Transfers   int // hand-offs not settled
	Expired     int // finished prompts that no other engine has taken in time; see Pull
	Early       int // notifications for requests that still run, which end stock vLLM

	External, Computed, Cached uint64 // prompt tokens by source
}

// Books returns the engine's books, or the zero value after its end.
func (e *Engine) Books() Books {
	var b Books
	e.ask(func() { b = e.books() })
	return b
}

func (e *Engine) books() Books {
	b := Books{
		Blocks: e.cfg.Blocks, Free: e.pool.free, Waiting: len(e.waiting), Running: len(e.running), Hanging: len(e.hanging), Transfers: len(e.transfers),
		Expired: e.counts.expired, Early: e.counts.early, External: e.counts.prompt[sourceExternal], Computed: e.counts.prompt[sourceCompute], Cached: e.counts.prompt[sourceCache],
	}
	for _, t := range e.transfers {
		switch {
		case t.seq.state == receiving:
			b.Receiving++
		case t.seq.req.Leg == DecodeLeg:
			b.Quarantined += len(t.blocks)
		default:
			b.Held += len(t.blocks)
		}
	}
	for _, x := range e.exports {
		b.Held += len(x.blocks)
	}
	return b
}

// Metrics returns the engine's metrics in Prometheus' text format.
func (e *Engine) Metrics() []byte {
	var w strings.Builder
	ok := e.ask(func() {
		b := e.books()
		metric(&w, "refengine_kv_blocks", "gauge", "KV blocks of each rank, by what they are used for.",
			series{`state="total"`, uint64(b.Blocks)}, series{`state="free"`, uint64(b.Free)},
			series{`state="held"`, uint64(b.Held)}, series{`state="quarantined"`, uint64(b.Quarantined)})
		metric(&w, "vllm:cache_config_info", "gauge", "The size of the prefix cache, as vLLM says it.",
			series{fmt.Sprintf(`block_size="%d",enable_prefix_caching="%t",engine="0",num_gpu_blocks="%d"`, e.cfg.BlockTokens, e.cfg.PrefixCache, b.Blocks), 1})
		metric(&w, "vllm:num_requests_running", "gauge", "Sequences at work, as vLLM says it.", series{`engine="0"`, uint64(b.Running)})
		metric(&w, "vllm:num_requests_waiting", "gauge", "Sequences that wait, as vLLM says it.", series{`engine="0"`, uint64(b.Waiting)})
		metric(&w, "vllm:kv_cache_usage_perc", "gauge", "The part of the KV blocks that is in use, 0 to 1, as vLLM says it.",
			series{`engine="0"`, 1 - float64(b.Free)/float64(max(b.Blocks, 1))})
		metric(&w, "refengine_requests", "gauge", "Sequences in the engine, by their state.",
			series{`state="running"`, uint64(b.Running)}, series{`state="waiting"`, uint64(b.Waiting)}, series{`state="receiving"`, uint64(b.Receiving)})
		metric(&w, "refengine_transfers", "gauge", "Hand-offs that are not settled.", series{"", uint64(b.Transfers)})
		var prompt []series
		for s := range sources {
			prompt = append(prompt, series{fmt.Sprintf("source=%q", sourceName(s)), e.counts.prompt[s]})
		}
		metric(&w, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens, by where their KV came from, as vLLM says it.", prompt...)
		metric(&w, "refengine_prompt_tokens_by_source_total", "counter", "Prompt tokens, by where their KV came from.", prompt...)
		metric(&w, "refengine_generation_tokens_total", "counter", "Tokens generated.", series{"", e.counts.generated})
		metric(&w, "refengine_steps_total", "counter", "Steps computed.", series{"", e.counts.steps})
		metric(&w, "refengine_requests_finished_total", "counter", "Sequences that ended, by how.", labelled("reason", e.counts.finished)...)
		metric(&w, "refengine_transfers_total", "counter", "Hand-offs settled, by how they ended.", labelled("ending", e.counts.transfers)...)
		metric(&w, "refengine_ticket_refusals_total", "counter", "Legs refused for their ticket, by what was wrong with it.", labelled("fault", e.counts.tickets)...)
		e.ignoredMetrics(&w)
		e.adapterMetric(&w)
	})
	if !ok {
		return nil
	}
	e.agentMetrics(&w)
	return []byte(w.String())
}

// series is one line of a metric.
type series struct {
	labels string
	value  any // a number
}

func labelled(label string, by map[string]uint64) []series {
	var out []series
	for _, k := range slices.Sorted(maps.Keys(by)) {
		out = append(out, series{fmt.Sprintf("%s=%q", label, k), by[k]})
	}
	return out
}

func metric(w *strings.Builder, name, kind, help string, lines ...series) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, l := range lines {
		if l.labels != "" {
			fmt.Fprintf(w, "%s{%s} %v\n", name, l.labels, l.value)
		} else {
			fmt.Fprintf(w, "%s %v\n", name, l.value)
		}
	}
}
