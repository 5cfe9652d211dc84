package plane

import (
	"context"
	"fmt"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

// tripGoal is how far the plane may be from the transport.
var tripGoal = report.Goal{Beside: rawTrip, Times: 1.5, Plus: 5}

func notifySuite() harness.Suite {
	return harness.Suite{Name: "plane/notify", Brief: "time of a completion from sent to seen, beside the raw round trip", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory", "socket"} {
			if err := plane(ctx, r, which, PlaneLayout{Blocks: 64, BlockBytes: 256, TP: 1}, []planeRow{notifyRow(which)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func notifyRow(which string) planeRow {
	return planeRow{which + " sent to seen", func(ctx context.Context, s *planeStage) (harness.Comparison, error) {
		c := harness.Comparison{Metrics: []harness.Metric{{Unit: "µs", Goals: []report.Goal{tripGoal}}}}
		c.Systems = append(c.Systems, s.pushing(PlaneShape{Blocks: 1}, func(p pushed) []float64 {
			return []float64{since(p.posts, 1, p.Seen)}
		}))
		trip, err := s.trip(ctx)
		c.Systems = append(c.Systems, trip)
		if which == "nixl" {
			c.Systems = append(c.Systems, s.byThread(PlaneOrder{Do: "echo"}, func(a PlaneAnswer) []float64 { return []float64{Median(a.Took, Micro)} }))
		}
		return c, err
	}}
}

// trip is the transport's round trip without a plane as a system.
func (s *planeStage) trip(ctx context.Context) (harness.System, error) {
	if s.which == "nixl" {
		return s.echo()
	}
	return s.socketLoop(ctx, 64, func(took []time.Duration) float64 { return Median(took, Micro) })
}

// since is the median time in µs from the last of so many posts of each transfer until what happened then.
func since(posts []planePost, each int, then []int64) float64 {
	took := make([]time.Duration, len(then))
	for i := range then {
		took[i] = time.Duration(then[i] - posts[(i+1)*each-1].began)
	}
	return Median(took, Micro)
}

func countSuite() harness.Suite {
	return harness.Suite{Name: "plane/count", Brief: "time until decode is released after the last of N tensor-parallel consumers", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory"} {
			for _, n := range []int{1, 2, 4, 8} {
				if err := plane(ctx, r, which, PlaneLayout{Blocks: 64, BlockBytes: 256 * n, TP: n}, []planeRow{countRow(which, n)}); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

func countRow(which string, n int) planeRow {
	return planeRow{fmt.Sprintf("%s N=%d", which, n), func(ctx context.Context, s *planeStage) (harness.Comparison, error) {
		trip, err := s.trip(ctx)
		c := harness.Comparison{Metrics: []harness.Metric{{Unit: "µs", Goals: []report.Goal{tripGoal}}}, Systems: []harness.System{
			s.pushing(PlaneShape{Blocks: 1}, func(p pushed) []float64 { return []float64{since(p.posts, n, p.Released)} }), trip,
		}}
		if err == nil && which == "nixl" {
			var bare harness.System
			bare, err = s.inTurns(ctx)
			c.Systems = append(c.Systems, bare)
		}
		return c, err
	}}
}
