package overhead

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// openRate is how many requests a second arrive in the open loop: no router that is measured is near its end there.
const openRate = 400

// openLatency measures streams that arrive by chance, whatever became of those before them.
func openLatency(ctx context.Context, r *harness.Run, connector string) error {
	name := fmt.Sprintf("%s open loop %d/s", strings.TrimPrefix(connector, "vllm-nixl-"), openRate)
	if !r.Wants(name) {
		return nil
	}
	s, err := r.Open(ctx, harness.Setup{Connector: connector, Where: harness.AloneCPU, Targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.Close()
	inMicro := func(of func(load.Quantiles) time.Duration) func(harness.Measured) float64 {
		return func(m harness.Measured) float64 { return report.InMicros(of(load.QuantilesOf(m.Took))) }
	}
	return r.Compare(ctx, s.ComparisonBy(name, func(ctx context.Context, which int, d time.Duration) (harness.Measured, error) {
		return openRound(ctx, s, which, d)
	},
		harness.Reads{Metric: harness.Metric{What: "p50 to the end", Unit: "µs"}, Of: inMicro(func(q load.Quantiles) time.Duration { return q.P50 })},
		harness.Reads{Metric: harness.Metric{What: "p99 to the end", Unit: "µs"}, Of: inMicro(func(q load.Quantiles) time.Duration { return q.P99 })},
	))
}

// openRound has streams arrive at a target for d. Each takes from the time at which it was to be sent until its end.
func openRound(ctx context.Context, s *harness.Stage, which int, d time.Duration) (harness.Measured, error) {
	target := s.Running[which]
	body := fake.ChatBody(1<<10, true)
	var arrivals []load.Arrival
	for _, at := range load.Poisson(openRate, max(1, int(openRate*d.Seconds())), uint64(d)) {
		arrivals = append(arrivals, load.Arrival{At: at, Body: body})
	}
	var late []time.Duration
	m, err := s.Watch(ctx, target, func() (load.Result, fake.Counts, error) {
		outcomes, err := load.OpenLoop(ctx, target.Address, arrivals)
		seen := load.Result{}
		for _, o := range outcomes {
			if err == nil && (o.Err != nil || o.Counted != fake.AnswerTokens) {
				err = fmt.Errorf("bench: an answer of %d tokens; want %d: %w", o.Counted, fake.AnswerTokens, o.Err)
			}
			seen.Took = append(seen.Took, o.Ended-o.At)
			seen.Elapsed = max(seen.Elapsed, o.Ended)
			late = append(late, o.Sent-o.At)
		}
		seen.Completed = len(seen.Took)
		return seen, harness.Asked(s.Targets[which].Legs, int64(seen.Completed)), err
	})
	m.Late = load.QuantilesOf(late).P99
	return m, err
}
