package bench

import (
	"context"
	"fmt"
	"time"
)

// tripGoal is how far the plane may be from the transport.
var tripGoal = Goal{Beside: rawTrip, Times: 1.5, Plus: 5}

func notifySuite() Suite {
	return Suite{Name: "plane/notify", Brief: "time of a completion from sent to seen, beside the raw round trip", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory", "socket"} {
			if err := r.plane(ctx, which, planeLayout{Blocks: 64, BlockBytes: 256, TP: 1}, []planeRow{notifyRow(which)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func notifyRow(which string) planeRow {
	return planeRow{which + " sent to seen", func(ctx context.Context, s *planeStage) (contest, error) {
		c := contest{metrics: []metric{{unit: "µs", goals: []Goal{tripGoal}}}}
		c.contenders = append(c.contenders, s.pushing(planeShape{Blocks: 1}, func(p pushed) []float64 {
			return []float64{since(p.posts, 1, p.Seen)}
		}))
		trip, err := s.trip(ctx)
		c.contenders = append(c.contenders, trip)
		if which == "nixl" {
			c.contenders = append(c.contenders, s.byThread(planeOrder{Do: "echo"}, func(a planeAnswer) []float64 { return []float64{median(a.Took, micro)} }))
		}
		return c, err
	}}
}

// trip is the transport's round trip without a plane as a contender.
func (s *planeStage) trip(ctx context.Context) (contender, error) {
	if s.which == "nixl" {
		return s.echo()
	}
	return s.socketLoop(ctx, 64, func(took []time.Duration) float64 { return median(took, micro) })
}

// since is the median time in µs from the last of so many posts of each transfer until what happened then.
func since(posts []planePost, each int, then []int64) float64 {
	took := make([]time.Duration, len(then))
	for i := range then {
		took[i] = time.Duration(then[i] - posts[(i+1)*each-1].began)
	}
	return median(took, micro)
}

func countSuite() Suite {
	return Suite{Name: "plane/count", Brief: "time until decode is released after the last of N tensor-parallel consumers", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory"} {
			for _, n := range []int{1, 2, 4, 8} {
				if err := r.plane(ctx, which, planeLayout{Blocks: 64, BlockBytes: 256 * n, TP: n}, []planeRow{countRow(which, n)}); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

func countRow(which string, n int) planeRow {
	return planeRow{fmt.Sprintf("%s N=%d", which, n), func(ctx context.Context, s *planeStage) (contest, error) {
		trip, err := s.trip(ctx)
		c := contest{metrics: []metric{{unit: "µs", goals: []Goal{tripGoal}}}, contenders: []contender{
			s.pushing(planeShape{Blocks: 1}, func(p pushed) []float64 { return []float64{since(p.posts, n, p.Released)} }), trip,
		}}
		if err == nil && which == "nixl" {
			var bare contender
			bare, err = s.inTurns(ctx)
			c.contenders = append(c.contenders, bare)
		}
		return c, err
	}}
}
