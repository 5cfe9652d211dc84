package overhead

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// syscallsSuite counts what a router asks of the kernel.
func syscallsSuite() harness.Suite {
	return harness.Suite{
		Name:  "overhead/syscalls",
		Brief: "system calls of a request of two legs, and bytes copied, by strace",
		Run: func(ctx context.Context, r *harness.Run) error {
			for _, row := range []struct {
				connector string
				stream    bool
			}{{"vllm-nixl-pull", false}, {"vllm-nixl-pull", true}, {"vllm-nixl-push", false}} {
				if err := syscalls(ctx, r, row.connector, row.stream); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// syscalls measures one load.
func syscalls(ctx context.Context, r *harness.Run, connector string, stream bool) error {
	row := rowOf(connector, harness.AloneCPU, 1<<10, 16, stream)
	if !r.Wants(row.Name) {
		return nil
	}
	s, err := r.Open(ctx, harness.Setup{Connector: connector, Where: row.Where, Targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := canTrace(ctx, s); err != nil {
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%s is left out: %v.", row.Name, err))
		return nil
	}
	c := harness.Comparison{Name: row.Name, Where: row.Where, Metrics: []harness.Metric{
		{What: "system calls", Unit: "calls"},
		{What: "of them reads and writes", Unit: "calls", Goals: []report.Goal{{Plus: 8}}},
		{What: "bytes copied", Unit: "KiB"},
	}}
	sums, requests := make([]calls, len(s.Targets)), make([]int, len(s.Targets))
	for i, x := range s.Targets {
		c.Systems = append(c.Systems, harness.System{Of: x.Of, Peer: x.Peer, Cannot: s.Cannot[i], Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			seen, completed, err := count(ctx, s, i, row.Load, d)
			if err != nil {
				return harness.Sample{}, err
			}
			sums[i].add(seen)
			requests[i] += completed
			n := float64(completed)
			return harness.Sample{Figures: []float64{float64(seen.all()) / n, float64(seen.moves()) / n, float64(seen.bytes) / n / 1024}, Done: completed}, nil
		}})
	}
	if err := r.Compare(ctx, c); err != nil {
		return err
	}
	for i, x := range s.Targets[:2] {
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%s, calls of a request, %s: %s.", row.Name, x.Of, sums[i].often(requests[i])))
	}
	return nil
}

// canTrace returns why the stage's processes cannot be traced; nil if they can.
func canTrace(ctx context.Context, s *harness.Stage) error {
	t, err := attach(ctx, s.Decode[0].Process.PID(), s.Place.Rest)
	if err != nil {
		return err
	}
	_, err = t.end()
	return err
}

// count applies the load to a target for d, and counts the target's calls until all requests are answered.
func count(ctx context.Context, s *harness.Stage, which int, l load.Closed, d time.Duration) (calls, int, error) {
	t, err := attach(ctx, s.Running[which].Process.PID(), s.Place.Target)
	if err != nil {
		return calls{}, 0, err
	}
	m, err := s.Round(ctx, which, l, d)
	seen, endErr := t.end()
	return seen, m.Completed, errors.Join(err, endErr)
}
