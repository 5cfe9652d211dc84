package plane

import (
	"context"
	"fmt"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

const Micro = time.Microsecond

func postSuite() harness.Suite {
	return harness.Suite{Name: "plane/post", Brief: "time of make + post by the number of descriptors, merged and not", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory", "socket"} {
			var rows []planeRow
			for _, n := range []int{1, 16, 64, 256, 1024} {
				if which == "nixl" || n == 1 || n == 1024 {
					rows = append(rows, postRow(which, n))
				}
			}
			rows = append(rows, mergedRow(which, 1024))
			if err := plane(ctx, r, which, PlaneLayout{Blocks: 4096, BlockBytes: 256, TP: 1}, rows); err != nil {
				return err
			}
		}
		return nil
	}}
}

// postFigures are the two metrics of a post.
func postFigures(p pushed) []float64 {
	var took, since []time.Duration
	for _, x := range p.posts {
		took, since = append(took, x.took), append(since, x.since)
	}
	return []float64{Median(took, Micro), Median(since, Micro)}
}

func postMetrics(goals ...report.Goal) []harness.Metric {
	return []harness.Metric{{What: "make + post", Unit: "µs", Goals: goals}, {What: "asked to posted", Unit: "µs"}}
}

func postRow(which string, n int) planeRow {
	shape := PlaneShape{Blocks: n}
	return planeRow{fmt.Sprintf("%s × %d", which, n), func(_ context.Context, s *planeStage) (harness.Comparison, error) {
		c := harness.Comparison{Metrics: postMetrics(), Systems: []harness.System{s.pushing(shape, postFigures)}}
		if n == 1024 {
			c.Metrics = postMetrics(report.Goal{Plus: 40})
		}
		twice := func(took []time.Duration) []float64 { x := Median(took, Micro); return []float64{x, x} }
		calls := s.kernel(callEach, shape, true, func(took []time.Duration) float64 { return Median(took, Micro) })
		one := calls.Round
		calls.Round = func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			got, err := one(ctx, d)
			if err == nil {
				got.Figures = append(got.Figures, got.Figures[0])
			}
			return got, err
		}
		if which != "nixl" {
			c.Systems = append(c.Systems, calls)
			return c, nil
		}
		hand, err := s.byHand(shape, func(_ PlaneAnswer, posts []barePost) []float64 {
			var took, since []time.Duration
			for _, x := range posts {
				took, since = append(took, x.posted), append(since, x.since)
			}
			return []float64{Median(took, Micro), Median(since, Micro)}
		})
		if err != nil {
			return c, err
		}
		made, err := s.byHand(shape, func(_ PlaneAnswer, posts []barePost) []float64 {
			var took []time.Duration
			for _, x := range posts {
				took = append(took, x.made)
			}
			return twice(took)
		})
		made.Of = "its make alone"
		c.Systems = append(c.Systems, hand, made, calls)
		return c, err
	}}
}

// mergedRow holds neighbours against shuffled blocks.
func mergedRow(which string, n int) planeRow {
	return planeRow{fmt.Sprintf("%s × %d neighbours", which, n), func(_ context.Context, s *planeStage) (harness.Comparison, error) {
		shuffled := s.pushing(PlaneShape{Blocks: n}, postFigures)
		shuffled.Of = "shuffled"
		return harness.Comparison{
			Metrics: postMetrics(report.Goal{Beside: "shuffled", Times: 0.25}),
			Systems: []harness.System{s.pushing(PlaneShape{n, true}, postFigures), shuffled},
		}, nil
	}}
}
