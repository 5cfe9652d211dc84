package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// streamSuites measure what a stream costs while it is relayed.
func streamSuites() []Suite {
	return []Suite{
		{
			Name:  "stream/token",
			Brief: "CPU time and delay of a relayed token: 100 streams with a token every 5 ms",
			run:   func(ctx context.Context, r *Run) error { return r.streamToken(ctx) },
		},
		{
			Name:  "stream/memory",
			Brief: "memory and CPU time of 4,000 idle streams",
			run:   func(ctx context.Context, r *Run) error { return r.streamMemory(ctx) },
		},
	}
}

// The load of stream/token.
const (
	tokenStreams = 100
	tokenEvery   = 5 * time.Millisecond
	tokenSpare   = time.Second // for which streams go on around the time that is measured
)

// streamTargets are the routers whose streams are measured.
func streamTargets() []target {
	return slices.Concat([]target{gatewayTarget(), floorTarget()}, proxyTargets())
}

// streamToken measures the suite stream/token.
func (r *Run) streamToken(ctx context.Context) error {
	name := fmt.Sprintf("%d streams, a token each %v", tokenStreams, tokenEvery)
	if !r.wants(name) {
		return nil
	}
	s, err := r.open(ctx, cast{connector: "vllm-nixl-pull", where: aloneCPU, targets: streamTargets()})
	if err != nil {
		return err
	}
	defer s.close()
	c := contest{name: name, where: s.place.where, metrics: []metric{
		{what: "CPU a token", unit: "µs", goals: []Goal{{Beside: "nginx", Times: 1.25}}},
		{what: "ITL p99 added", unit: "ms"},
		{what: "largest delay of a token", unit: "ms", goals: []Goal{{Plus: 40}}},
		{what: "tokens in a chunk of their own", unit: "%", goals: []Goal{{Plus: 99, AtLeast: true}}},
	}}
	for i, x := range s.targets {
		c.contenders = append(c.contenders, contender{of: x.of, peer: x.peer, cannot: s.cannot[i], round: func(ctx context.Context, d time.Duration) (sample, error) {
			return s.tokenRound(ctx, i, d)
		}})
	}
	return r.contest(ctx, c)
}

// tokenRound holds the streams for d, and for what it takes to have them all begun before and all whole behind.
func (s *stage) tokenRound(ctx context.Context, which int, d time.Duration) (sample, error) {
	target := s.running[which]
	before, err := s.read(ctx, target)
	if err != nil {
		return sample{}, err
	}
	load := streamLoad{
		address: target.address, streams: tokenStreams, apart: time.Millisecond + tokenEvery/tokenStreams,
		pace: pace{Tokens: int((d + tokenSpare) / tokenEvery), Every: tokenEvery},
	}
	held, err := load.open(ctx)
	if err != nil {
		return sample{}, errors.Join(err, target.alive())
	}
	steady, read, err := s.steady(held, func() (reading, error) { return s.read(ctx, target) }, d)
	if err = errors.Join(err, held.wait()); err != nil {
		return sample{}, errors.Join(err, target.alive())
	}
	want := asked(s.targets[which].legs, tokenStreams)
	after, err := s.settled(ctx, target, before, want)
	if err == nil {
		err = verdict(want, after.counts.minus(before.counts))
	}
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", target.name, err)
	}
	g := held.gaps()
	return sample{disturbance: steady.disturbance, done: read, figures: []float64{
		float64(steady.target) / float64(read) / float64(time.Microsecond), millis(g.added), millis(g.late), 100 * g.own,
	}}, nil
}

// steadily is what a target has used between two readings.
type steadily struct {
	disturbance
	target, elapsed time.Duration
}

// steady reads what the target uses in d, and how many tokens of the streams come in that time.
func (s *stage) steady(held *streams, read func() (reading, error), d time.Duration) (steadily, int, error) {
	from, err := read()
	first := held.tokens.Load()
	if err != nil {
		return steadily{}, 0, err
	}
	_ = pause(held.ctx, d) // why streams have ended is told where they are waited for
	to, err := read()
	last := held.tokens.Load()
	return steadily{to.since(from.use), to.target - from.target, to.at.Sub(from.at)}, int(last - first), err
}
