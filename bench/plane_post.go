package bench

import (
	"context"
	"fmt"
	"time"
)

const micro = time.Microsecond

func postSuite() Suite {
	return Suite{Name: "plane/post", Brief: "time of make + post by the number of descriptors, merged and not", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory", "socket"} {
			var rows []planeRow
			for _, n := range []int{1, 16, 64, 256, 1024} {
				if which == "nixl" || n == 1 || n == 1024 {
					rows = append(rows, postRow(which, n))
				}
			}
			rows = append(rows, mergedRow(which, 1024))
			if err := r.plane(ctx, which, planeLayout{Blocks: 4096, BlockBytes: 256, TP: 1}, rows); err != nil {
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
	return []float64{median(took, micro), median(since, micro)}
}

func postMetrics(goals ...Goal) []metric {
	return []metric{{what: "make + post", unit: "µs", goals: goals}, {what: "asked to posted", unit: "µs"}}
}

func postRow(which string, n int) planeRow {
	shape := planeShape{Blocks: n}
	return planeRow{fmt.Sprintf("%s × %d", which, n), func(_ context.Context, s *planeStage) (contest, error) {
		c := contest{metrics: postMetrics(), contenders: []contender{s.pushing(shape, postFigures)}}
		if n == 1024 {
			c.metrics = postMetrics(Goal{Plus: 40})
		}
		twice := func(took []time.Duration) []float64 { x := median(took, micro); return []float64{x, x} }
		calls := s.kernel(callEach, shape, true, func(took []time.Duration) float64 { return median(took, micro) })
		one := calls.round
		calls.round = func(ctx context.Context, d time.Duration) (sample, error) {
			got, err := one(ctx, d)
			if err == nil {
				got.figures = append(got.figures, got.figures[0])
			}
			return got, err
		}
		if which != "nixl" {
			c.contenders = append(c.contenders, calls)
			return c, nil
		}
		hand, err := s.byHand(shape, func(_ planeAnswer, posts []barePost) []float64 {
			var took, since []time.Duration
			for _, x := range posts {
				took, since = append(took, x.posted), append(since, x.since)
			}
			return []float64{median(took, micro), median(since, micro)}
		})
		if err != nil {
			return c, err
		}
		made, err := s.byHand(shape, func(_ planeAnswer, posts []barePost) []float64 {
			var took []time.Duration
			for _, x := range posts {
				took = append(took, x.made)
			}
			return twice(took)
		})
		made.of = "its make alone"
		c.contenders = append(c.contenders, hand, made, calls)
		return c, err
	}}
}

// mergedRow holds neighbours against shuffled blocks.
func mergedRow(which string, n int) planeRow {
	return planeRow{fmt.Sprintf("%s × %d neighbours", which, n), func(_ context.Context, s *planeStage) (contest, error) {
		shuffled := s.pushing(planeShape{Blocks: n}, postFigures)
		shuffled.of = "shuffled"
		return contest{
			metrics:    postMetrics(Goal{Beside: "shuffled", Times: 0.25}),
			contenders: []contender{s.pushing(planeShape{n, true}, postFigures), shuffled},
		}, nil
	}}
}
