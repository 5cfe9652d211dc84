package bench

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// openRate is how many requests a second arrive in the open loop: no router that is measured is near its end there.
const openRate = 400

// openLatency measures streams that arrive by chance, whatever became of those before them.
func (r *Run) openLatency(ctx context.Context, connector string) error {
	name := fmt.Sprintf("%s open loop %d/s", strings.TrimPrefix(connector, "vllm-nixl-"), openRate)
	if !r.wants(name) {
		return nil
	}
	s, err := r.open(ctx, cast{connector: connector, where: aloneCPU, targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.close()
	inMicro := func(of func(quantiles) time.Duration) func(measured) float64 {
		return func(m measured) float64 { return inMicros(of(quantilesOf(m.took))) }
	}
	return r.contest(ctx, s.rounds(name, s.openRound,
		reads{metric{what: "p50 to the end", unit: "µs"}, inMicro(func(q quantiles) time.Duration { return q.p50 })},
		reads{metric{what: "p99 to the end", unit: "µs"}, inMicro(func(q quantiles) time.Duration { return q.p99 })},
	))
}

// openRound has streams arrive at a target for d. Each takes from the time at which it was to be sent until its end.
func (s *stage) openRound(ctx context.Context, which int, d time.Duration) (measured, error) {
	target := s.running[which]
	body := chatBody(1<<10, true)
	var arrivals []arrival
	for _, at := range poisson(openRate, max(1, int(openRate*d.Seconds())), uint64(d)) {
		arrivals = append(arrivals, arrival{at: at, body: body})
	}
	var late []time.Duration
	m, err := s.watch(ctx, target, func() (loaded, Counts, error) {
		outcomes, err := openLoop(ctx, target.address, arrivals)
		seen := loaded{}
		for _, o := range outcomes {
			if err == nil && (o.err != nil || o.counted != answerTokens) {
				err = fmt.Errorf("bench: an answer of %d tokens; want %d: %w", o.counted, answerTokens, o.err)
			}
			seen.took = append(seen.took, o.ended-o.at)
			seen.elapsed = max(seen.elapsed, o.ended)
			late = append(late, o.sent-o.at)
		}
		seen.completed = len(seen.took)
		return seen, asked(s.targets[which].legs, int64(seen.completed)), err
	})
	m.late = quantilesOf(late).p99
	return m, err
}
