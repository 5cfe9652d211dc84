package bench

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// latencySuite measures what a router adds to the time of a request.
func latencySuite() Suite {
	return Suite{
		Name:  "overhead/latency",
		Brief: "time that a gateway adds to a request, p50 and p99",
		run: func(ctx context.Context, r *Run) error {
			for _, connector := range []string{"vllm-nixl-pull", "vllm-nixl-push", "sglang"} {
				if err := r.latency(ctx, connector); err != nil {
					return err
				}
			}
			for _, connector := range []string{"vllm-nixl-pull", "vllm-nixl-push", "sglang"} {
				if err := r.openLatency(ctx, connector); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// latency measures one connector.
func (r *Run) latency(ctx context.Context, connector string) error {
	name := strings.TrimPrefix(connector, "vllm-nixl-") + " c=1"
	if !r.wants(name) {
		return nil
	}
	s, err := r.open(ctx, cast{connector: connector, where: oneCPU, targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.close()
	atMost := []Goal{{Beside: "floor", Times: 1.5}}
	c := contest{name: name, where: s.place.where, metrics: []metric{{what: "p50 added", unit: "µs", goals: atMost}, {what: "p99 added", unit: "µs", goals: atMost}}}
	alone := map[int][2][]float64{} // by legs: p50 and p99 of the client that makes them
	for i, x := range s.targets {
		counts := false // the first round warms up
		c.contenders = append(c.contenders, contender{of: x.of, peer: x.peer, cannot: s.cannot[i], round: func(ctx context.Context, d time.Duration) (sample, error) {
			p, m, err := s.pairs(ctx, i, load{connections: 1, body: chatBody(1<<10, false)}, d)
			if err != nil {
				return sample{}, err
			}
			through, direct := quantilesOf(p.through), quantilesOf(p.direct)
			if was := alone[x.legs]; counts && m.calm(r.Config) {
				alone[x.legs] = [2][]float64{append(was[0], inMicros(direct.p50)), append(was[1], inMicros(direct.p99))}
			}
			counts = true
			return sample{disturbance: m.disturbance, figures: []float64{inMicros(through.p50 - direct.p50), inMicros(through.p99 - direct.p99)}, done: m.completed}, nil
		}})
	}
	if err := r.contest(ctx, c); err != nil {
		return err
	}
	two, one := alone[2], alone[1]
	note := fmt.Sprintf("%s without a router: p50 %s µs and p99 %s µs with both legs", name, spread(two[0]), spread(two[1]))
	if len(one[0]) > 0 {
		note += fmt.Sprintf("; %s and %s with decode's alone", spread(one[0]), spread(one[1]))
	}
	r.report.Notes = append(r.report.Notes, note+".")
	return nil
}

// inMicros is a time in µs.
func inMicros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// millis is a time in ms.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// paired is how long the requests of pairs took, one of each through a router and one without.
type paired struct{ through, direct []time.Duration }

// pairs asks for d, in turns, one request through the target and one by the client's own legs.
func (s *stage) pairs(ctx context.Context, which int, l load, d time.Duration) (p paired, m measured, err error) {
	target, legs := s.running[which], s.targets[which].legs
	l.address = target.address
	m, err = s.watch(ctx, target, func() (loaded, Counts, error) {
		p, err = alternate(ctx, d, l.open, s.direct(l, legs).open)
		n := int64(len(p.direct))
		return loaded{completed: len(p.through), took: p.through}, asked(legs, int64(len(p.through))).plus(asked(legs, n)), err
	})
	return p, m, err
}

// alternate has two askers make a request each, again and again, for d: A B, B A, A B …
func alternate(ctx context.Context, d time.Duration, through, direct func(context.Context, time.Time) (asker, error)) (paired, error) {
	var p paired
	until := time.Now().Add(d)
	askers := [2]asker{}
	for i, open := range []func(context.Context, time.Time) (asker, error){through, direct} {
		a, err := open(ctx, until.Add(30*time.Second))
		if err != nil {
			return p, err
		}
		defer a.close()
		askers[i] = a
	}
	took := [2]*[]time.Duration{&p.through, &p.direct}
	for n := 0; time.Now().Before(until) && ctx.Err() == nil; n++ {
		for _, i := range order(n, 2) {
			at := time.Now()
			if err := askers[i].ask(); err != nil {
				return p, fmt.Errorf("bench: pair %d: %w", n, err)
			}
			*took[i] = append(*took[i], time.Since(at))
		}
	}
	return p, ctx.Err()
}
