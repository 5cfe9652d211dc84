package refengine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pdrouter/kvplane/agent"
)

// ignoredMetrics adds what the ranks said without effect. It runs on the engine's goroutine.
func (e *Engine) ignoredMetrics(w *strings.Builder) {
	if e.plane == nil {
		return
	}
	i := e.plane.together.Ignored()
	metric(w, "refengine_ignored_reports_total", "counter", "What ranks said without effect, by why.",
		series{`why="foreign"`, i.Foreign}, series{`why="stranger"`, i.Stranger}, series{`why="doubled"`, i.Doubled},
		series{`why="unknown"`, i.Unknown}, series{`why="misfit"`, i.Misfit}, series{`why="stale"`, i.Stale}, series{`why="missed"`, e.plane.together.Missed()})
}

// agentMetrics adds what each rank's agent holds and has seen.
func (e *Engine) agentMetrics(w *strings.Builder) {
	if e.plane == nil {
		return
	}
	var ranks []string
	var all []agent.Status
	for _, a := range e.plane.agents {
		ranks, all = append(ranks, fmt.Sprintf("rank=%q", a.Record().Rank.String())), append(all, a.Status())
	}
	one := func(name, kind, help string, value func(*agent.Status) any) {
		var lines []series
		for i := range all {
			lines = append(lines, series{ranks[i], value(&all[i])})
		}
		metric(w, name, kind, help, lines...)
	}
	one("refengine_plane_polls_total", "counter", "Times that the transport was asked for news.", func(s *agent.Status) any { return s.Polls })
	one("refengine_plane_wakeups_total", "counter", "Times that an agent went from waiting to working.", func(s *agent.Status) any { return s.Wakeups })
	one("refengine_plane_unseen_total", "counter", "Things taken in of which nobody knows how long they had waited.", func(s *agent.Status) any { return s.Seen.Unknown })
	one("refengine_plane_written_bytes_total", "counter", "Bytes of writes that ended well.", func(s *agent.Status) any { return s.WrittenBytes })
	one("refengine_plane_slow_posts_total", "counter", "Writes that took more than 200 ms to plan and to post.", func(s *agent.Status) any { return s.SlowPosts })
	one("refengine_plane_held_blocks", "gauge", "Blocks that wait for a consumer.", func(s *agent.Status) any { return s.HeldBlocks })
	one("refengine_plane_pinned_blocks", "gauge", "Blocks that a producer may write.", func(s *agent.Status) any { return s.PinnedBlocks })
	one("refengine_plane_writes", "gauge", "Writes in progress.", func(s *agent.Status) any { return s.Writing })

	many := func(name, kind, help, label string, values func(*agent.Status) map[string]any) {
		var lines []series
		for i := range all {
			by := values(&all[i])
			for _, k := range slices.Sorted(maps.Keys(by)) {
				lines = append(lines, series{fmt.Sprintf("%s,%s=%q", ranks[i], label, k), by[k]})
			}
		}
		metric(w, name, kind, help, lines...)
	}
	many("refengine_plane_quarantined_blocks", "gauge", "Blocks of failed transfers that a peer may still write, by peer.", "peer",
		func(s *agent.Status) map[string]any {
			return each(s.Quarantined, func(q agent.Quarantine) any { return q.Blocks })
		})
	many("refengine_plane_quarantine_seconds", "gauge", "Time since the first of these failed, by peer.", "peer",
		func(s *agent.Status) map[string]any {
			return each(s.Quarantined, func(q agent.Quarantine) any { return q.Seconds })
		})
	many("refengine_plane_stuck_writes", "gauge", "Writes in progress for more than 30 s, by peer.", "peer",
		func(s *agent.Status) map[string]any { return each(s.Stuck, func(n int) any { return n }) })
	many("refengine_plane_writes_failed_total", "counter", "Writes refused or ended in an error, by reason.", "reason",
		func(s *agent.Status) map[string]any { return each(s.Failed, func(n uint64) any { return n }) })
	many("refengine_plane_served_total", "counter", "Offered transfers that came to their end, by reason.", "reason",
		func(s *agent.Status) map[string]any { return each(s.Served, func(n uint64) any { return n }) })
	many("refengine_plane_received_total", "counter", "Expected transfers that came to their end, by reason.", "reason",
		func(s *agent.Status) map[string]any { return each(s.Received, func(n uint64) any { return n }) })
	many("refengine_plane_dropped_total", "counter", "Events without effect, by why.", "why",
		func(s *agent.Status) map[string]any { return each(s.Dropped, func(n int) any { return n }) })

	seen(w, ranks, all)
}

func each[V any](by map[string]V, value func(V) any) map[string]any {
	out := make(map[string]any, len(by))
	for k, v := range by {
		out[k] = value(v)
	}
	return out
}

// seen adds how long what agents have taken in may have waited for that, as a histogram.
func seen(w *strings.Builder, ranks []string, all []agent.Status) {
	const name = "refengine_plane_seen_seconds"
	fmt.Fprintf(w, "# HELP %s Longest time that what an agent took in may have waited for that.\n# TYPE %s histogram\n", name, name)
	bounds := agent.SeenBounds()
	for i := range all {
		s := &all[i].Seen
		sum := uint64(0)
		for j, n := range s.Buckets {
			le := "+Inf"
			if j < len(bounds) {
				le = fmt.Sprint(bounds[j].Seconds())
			}
			sum += n
			fmt.Fprintf(w, "%s_bucket{%s,le=%q} %d\n", name, ranks[i], le, sum)
		}
		fmt.Fprintf(w, "%s_sum{%s} %v\n%s_count{%s} %d\n", name, ranks[i], s.Sum, name, ranks[i], s.Count)
	}
}
