package bench

import (
	"context"
	"errors"
	"time"
)

func idleSuite() Suite {
	return Suite{Name: "plane/idle", Brief: "CPU time of an agent with nothing outstanding, beside NIXL's progress thread", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory"} {
			row := planeRow{which, func(ctx context.Context, s *planeStage) (contest, error) { return s.idle(ctx, r.Binary) }}
			if err := r.plane(ctx, which, planeLayout{Blocks: 64, BlockBytes: 4 << 10, TP: 1}, []planeRow{row}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func (s *planeStage) idle(ctx context.Context, binary string) (c contest, err error) {
	c = contest{
		metrics:    []metric{{unit: "% core", goals: []Goal{{Beside: "no agent", Times: 1, Plus: 0.1}}}},
		contenders: []contender{idling(us, s.decode.pid)},
	}
	for _, of := range []string{"no agent", progressThread} {
		if of == progressThread && s.which != "nixl" {
			continue
		}
		p, err := startPlane(ctx, binary)
		if err != nil {
			return c, err
		}
		s.ended = append(s.ended, p.close)
		if of == progressThread {
			if _, err := p.tell(planeOrder{Do: "bare", Thread: true}); err != nil {
				return c, err
			}
		}
		c.contenders = append(c.contenders, idling(of, p.pid))
	}
	return c, nil
}

// idling is a process's CPU time as a contender, in % of a core.
func idling(of string, pid int) contender {
	return contender{of: of, round: func(ctx context.Context, d time.Duration) (sample, error) {
		before, err := cpuOf("/proc", pid)
		start := time.Now()
		over := pause(ctx, d)
		after, err2 := cpuOf("/proc", pid)
		used := 100 * float64(after-before) / float64(time.Since(start))
		return sample{figures: []float64{max(used, 0.001)}, done: 1}, errors.Join(over, err, err2)
	}}
}
