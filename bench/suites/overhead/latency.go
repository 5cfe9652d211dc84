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

// latencySuite measures what a router adds to the time of a request.
func latencySuite() harness.Suite {
	return harness.Suite{
		Name:  "overhead/latency",
		Brief: "time that a gateway adds to a request, p50 and p99",
		Run: func(ctx context.Context, r *harness.Run) error {
			for _, connector := range []string{"vllm-nixl-pull", "vllm-nixl-push", "sglang"} {
				if err := latency(ctx, r, connector); err != nil {
					return err
				}
			}
			for _, connector := range []string{"vllm-nixl-pull", "vllm-nixl-push", "sglang"} {
				if err := openLatency(ctx, r, connector); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// latency measures one connector.
func latency(ctx context.Context, r *harness.Run, connector string) error {
	name := strings.TrimPrefix(connector, "vllm-nixl-") + " c=1"
	if !r.Wants(name) {
		return nil
	}
	s, err := r.Open(ctx, harness.Setup{Connector: connector, Where: harness.OneCPU, Targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.Close()
	atMost := []report.Goal{{Beside: report.Baseline, Times: 1.5}}
	c := harness.Comparison{Name: name, Where: s.Place.Where, Metrics: []harness.Metric{{What: "p50 added", Unit: "µs", Goals: atMost}, {What: "p99 added", Unit: "µs", Goals: atMost}}}
	alone := map[int][2][]float64{} // by legs: p50 and p99 of the client that makes them
	for i, x := range s.Targets {
		counts := false // the first round warms up
		c.Systems = append(c.Systems, harness.System{Of: x.Of, Peer: x.Peer, Cannot: s.Cannot[i], Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			p, m, err := pairs(ctx, s, i, load.Closed{Connections: 1, Body: fake.ChatBody(1<<10, false)}, d)
			if err != nil {
				return harness.Sample{}, err
			}
			through, direct := load.QuantilesOf(p.Through), load.QuantilesOf(p.Direct)
			if was := alone[x.Legs]; counts && m.Calm(r.Config) {
				alone[x.Legs] = [2][]float64{append(was[0], report.InMicros(direct.P50)), append(was[1], report.InMicros(direct.P99))}
			}
			counts = true
			return harness.Sample{Disturbance: m.Disturbance, Figures: []float64{report.InMicros(through.P50 - direct.P50), report.InMicros(through.P99 - direct.P99)}, Done: m.Completed}, nil
		}})
	}
	if err := r.Compare(ctx, c); err != nil {
		return err
	}
	two, one := alone[2], alone[1]
	note := fmt.Sprintf("%s without a router: p50 %s µs and p99 %s µs with both legs", name, report.SpreadOf(two[0]), report.SpreadOf(two[1]))
	if len(one[0]) > 0 {
		note += fmt.Sprintf("; %s and %s with decode's alone", report.SpreadOf(one[0]), report.SpreadOf(one[1]))
	}
	r.Report.Notes = append(r.Report.Notes, note+".")
	return nil
}

// pairs asks for d, in turns, one request through the target and one by the client's own legs.
func pairs(ctx context.Context, s *harness.Stage, which int, l load.Closed, d time.Duration) (p harness.Paired, m harness.Measured, err error) {
	target, legs := s.Running[which], s.Targets[which].Legs
	l.Address = target.Address
	m, err = s.Watch(ctx, target, func() (load.Result, fake.Counts, error) {
		p, err = harness.Alternate(ctx, d, l.Open, s.Direct(l, legs).Open)
		n := int64(len(p.Direct))
		return load.Result{Completed: len(p.Through), Took: p.Through}, harness.Asked(legs, int64(len(p.Through))).Plus(harness.Asked(legs, n)), err
	})
	return p, m, err
}
