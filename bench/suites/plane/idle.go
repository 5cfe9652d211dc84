package plane

import (
	"context"
	"errors"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

func idleSuite() harness.Suite {
	return harness.Suite{Name: "plane/idle", Brief: "CPU time of an agent with nothing outstanding, beside NIXL's progress thread", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory"} {
			row := planeRow{which, func(ctx context.Context, s *planeStage) (harness.Comparison, error) { return s.idle(ctx, r.Binary) }}
			if err := plane(ctx, r, which, PlaneLayout{Blocks: 64, BlockBytes: 4 << 10, TP: 1}, []planeRow{row}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (s *planeStage) idle(ctx context.Context, binary string) (c harness.Comparison, err error) {
	c = harness.Comparison{
		Metrics: []harness.Metric{{Unit: "% core", Goals: []report.Goal{{Beside: "no agent", Times: 1, Plus: 0.1}}}},
		Systems: []harness.System{idling(report.Us, s.decode.Pid)},
	}
	for _, of := range []string{"no agent", progressThread} {
		if of == progressThread && s.which != "nixl" {
			continue
		}
		p, err := StartPlane(ctx, binary)
		if err != nil {
			return c, err
		}
		s.ended = append(s.ended, p.Close)
		if of == progressThread {
			if _, err := p.Tell(PlaneOrder{Do: "bare", Thread: true}); err != nil {
				return c, err
			}
		}
		c.Systems = append(c.Systems, idling(of, p.Pid))
	}
	return c, nil
}

// idling is a process's CPU time as a system, in % of a core.
func idling(of string, pid int) harness.System {
	return harness.System{Of: of, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		before, err := harness.CPUOf("/proc", pid)
		start := time.Now()
		over := harness.Pause(ctx, d)
		after, err2 := harness.CPUOf("/proc", pid)
		used := 100 * float64(after-before) / float64(time.Since(start))
		return harness.Sample{Figures: []float64{max(used, 0.001)}, Done: 1}, errors.Join(over, err, err2)
	}}
}
