package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// Suites measure what a stream costs while it is relayed.
func Suites() []harness.Suite {
	return []harness.Suite{
		{
			Name:  "stream/token",
			Brief: "CPU time and delay of a relayed token: 100 streams with a token every 5 ms",
			Run:   func(ctx context.Context, r *harness.Run) error { return streamToken(ctx, r) },
		},
		{
			Name:  "stream/memory",
			Brief: "memory and CPU time of 4,000 idle streams",
			Run:   func(ctx context.Context, r *harness.Run) error { return streamMemory(ctx, r) },
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
func streamTargets() []harness.Target {
	return slices.Concat([]harness.Target{harness.GatewayTarget(), harness.BaselineTarget()}, harness.ProxyTargets())
}

// streamToken measures the suite stream/token.
func streamToken(ctx context.Context, r *harness.Run) error {
	name := fmt.Sprintf("%d streams, a token each %v", tokenStreams, tokenEvery)
	if !r.Wants(name) {
		return nil
	}
	s, err := r.Open(ctx, harness.Setup{Connector: "vllm-nixl-pull", Where: harness.AloneCPU, Targets: streamTargets()})
	if err != nil {
		return err
	}
	defer s.Close()
	c := harness.Comparison{Name: name, Where: s.Place.Where, Metrics: []harness.Metric{
		{What: "CPU a token", Unit: "µs", Goals: []report.Goal{{Beside: "nginx", Times: 1.25}}},
		{What: "ITL p99 added", Unit: "ms"},
		{What: "largest delay of a token", Unit: "ms", Goals: []report.Goal{{Plus: 40}}},
		{What: "tokens in a chunk of their own", Unit: "%", Goals: []report.Goal{{Plus: 99, AtLeast: true}}},
	}}
	for i, x := range s.Targets {
		c.Systems = append(c.Systems, harness.System{Of: x.Of, Peer: x.Peer, Cannot: s.Cannot[i], Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			return tokenRound(ctx, s, i, d)
		}})
	}
	return r.Compare(ctx, c)
}

// tokenRound holds the streams for d, and for what it takes to have them all begun before and all whole behind.
func tokenRound(ctx context.Context, s *harness.Stage, which int, d time.Duration) (harness.Sample, error) {
	target := s.Running[which]
	before, err := s.Read(ctx, target)
	if err != nil {
		return harness.Sample{}, err
	}
	load := load.StreamLoad{
		Address: target.Address, Streams: tokenStreams, Apart: time.Millisecond + tokenEvery/tokenStreams,
		Pace: fake.Pace{Tokens: int((d + tokenSpare) / tokenEvery), Every: tokenEvery},
	}
	held, err := load.Open(ctx)
	if err != nil {
		return harness.Sample{}, errors.Join(err, target.Alive())
	}
	steady, read, err := steady(s, held, func() (harness.Reading, error) { return s.Read(ctx, target) }, d)
	if err = errors.Join(err, held.Wait()); err != nil {
		return harness.Sample{}, errors.Join(err, target.Alive())
	}
	want := harness.Asked(s.Targets[which].Legs, tokenStreams)
	after, err := s.Settled(ctx, target, before, want)
	if err == nil {
		err = harness.Verdict(want, after.Counts.Minus(before.Counts))
	}
	if err != nil {
		return harness.Sample{}, fmt.Errorf("%s: %w", target.Name, err)
	}
	g := held.Gaps()
	return harness.Sample{Disturbance: steady.Disturbance, Done: read, Figures: []float64{
		float64(steady.target) / float64(read) / float64(time.Microsecond), report.Millis(g.Added), report.Millis(g.Late), 100 * g.Own,
	}}, nil
}

// steadily is what a target has used between two readings.
type steadily struct {
	harness.Disturbance
	target, elapsed time.Duration
}

// steady reads what the target uses in d, and how many tokens of the streams come in that time.
func steady(s *harness.Stage, held *load.Streams, read func() (harness.Reading, error), d time.Duration) (steadily, int, error) {
	from, err := read()
	first := held.Arrived.Load()
	if err != nil {
		return steadily{}, 0, err
	}
	_ = harness.Pause(held.Ctx, d) // why streams have ended is told where they are waited for
	to, err := read()
	last := held.Arrived.Load()
	return steadily{to.Since(from.Use), to.Target - from.Target, to.At.Sub(from.At)}, int(last - first), err
}
