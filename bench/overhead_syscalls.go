package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// syscallsSuite counts what a router asks of the kernel.
func syscallsSuite() Suite {
	return Suite{
		Name:  "overhead/syscalls",
		Brief: "system calls of a request of two legs, and bytes copied, by strace",
		run: func(ctx context.Context, r *Run) error {
			for _, row := range []struct {
				connector string
				stream    bool
			}{{"vllm-nixl-pull", false}, {"vllm-nixl-pull", true}, {"vllm-nixl-push", false}} {
				if err := r.syscalls(ctx, row.connector, row.stream); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// syscalls measures one load.
func (r *Run) syscalls(ctx context.Context, connector string, stream bool) error {
	row := rowOf(connector, aloneCPU, 1<<10, 16, stream)
	if !r.wants(row.name) {
		return nil
	}
	s, err := r.open(ctx, cast{connector: connector, where: row.where, targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.canTrace(ctx); err != nil {
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("%s is left out: %v.", row.name, err))
		return nil
	}
	c := contest{name: row.name, where: row.where, metrics: []metric{
		{what: "system calls", unit: "calls"},
		{what: "of them reads and writes", unit: "calls", goals: []Goal{{Plus: 8}}},
		{what: "bytes copied", unit: "KiB"},
	}}
	sums, requests := make([]calls, len(s.targets)), make([]int, len(s.targets))
	for i, x := range s.targets {
		c.contenders = append(c.contenders, contender{of: x.of, peer: x.peer, cannot: s.cannot[i], round: func(ctx context.Context, d time.Duration) (sample, error) {
			seen, completed, err := s.count(ctx, i, row.load, d)
			if err != nil {
				return sample{}, err
			}
			sums[i].add(seen)
			requests[i] += completed
			n := float64(completed)
			return sample{figures: []float64{float64(seen.all()) / n, float64(seen.moves()) / n, float64(seen.bytes) / n / 1024}, done: completed}, nil
		}})
	}
	if err := r.contest(ctx, c); err != nil {
		return err
	}
	for i, x := range s.targets[:2] {
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("%s, calls of a request, %s: %s.", row.name, x.of, sums[i].often(requests[i])))
	}
	return nil
}

// canTrace returns why the stage's processes cannot be traced; nil if they can.
func (s *stage) canTrace(ctx context.Context) error {
	t, err := attach(ctx, s.decode[0].cmd.Process.Pid, s.place.rest)
	if err != nil {
		return err
	}
	_, err = t.end()
	return err
}

// count applies the load to a target for d, and counts the target's calls until all requests are answered.
func (s *stage) count(ctx context.Context, which int, l load, d time.Duration) (calls, int, error) {
	t, err := attach(ctx, s.running[which].cmd.Process.Pid, s.place.target)
	if err != nil {
		return calls{}, 0, err
	}
	m, err := s.round(ctx, which, l, d)
	seen, endErr := t.end()
	return seen, m.completed, errors.Join(err, endErr)
}
