package plane

import (
	"context"
	"fmt"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

func registerSuite() harness.Suite {
	return harness.Suite{Name: "plane/register", Brief: "time from a registration until its blocks have arrived", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory"} {
			if err := plane(ctx, r, which, PlaneLayout{Blocks: 1024, BlockBytes: 32 << 10, TP: 1}, []planeRow{registerRow(which)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func registerRow(which string) planeRow {
	shape := PlaneShape{Blocks: 16}
	return planeRow{which, func(_ context.Context, s *planeStage) (harness.Comparison, error) {
		c := harness.Comparison{Metrics: []harness.Metric{{Unit: "µs"}}, Systems: []harness.System{
			s.pushing(shape, func(p pushed) []float64 { return []float64{Median(p.Took, Micro)} }),
			s.kernel("process_vm_readv", shape, false, func(took []time.Duration) float64 { return Median(took, Micro) }),
		}}
		if which != "nixl" {
			return c, nil
		}
		c.Metrics[0].Goals = []report.Goal{{Plus: 100}, {Beside: "NIXL by hand", Times: 1.25}}
		hand, err := s.byHand(shape, func(a PlaneAnswer, _ []barePost) []float64 { return []float64{Median(a.Took, Micro)} })
		c.Systems = append(c.Systems, hand)
		return c, err
	}}
}

func releaseSuite() harness.Suite {
	return harness.Suite{Name: "plane/release", Brief: "time from the arrival of a completion until the engine has decode released", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory"} {
			if err := plane(ctx, r, which, PlaneLayout{Blocks: 1024, BlockBytes: 32 << 10, TP: 1}, []planeRow{releaseRow(which)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func releaseRow(which string) planeRow {
	return planeRow{which, func(_ context.Context, s *planeStage) (harness.Comparison, error) {
		return harness.Comparison{Metrics: []harness.Metric{{Unit: "µs", Goals: []report.Goal{{Plus: 50}}}}, Systems: []harness.System{
			s.pushing(PlaneShape{Blocks: 16}, func(p pushed) []float64 { return []float64{Median(p.Release, Micro)} }),
			sliced("bare channel", func(_ context.Context, n int) ([]float64, error) { return []float64{Median(handover(n), Micro)}, nil }),
		}}, nil
	}}
}

// handover is how long one goroutine needs to wake another one through a channel, n times.
func handover(n int) (took []time.Duration) {
	there, back := make(chan time.Time), make(chan time.Duration)
	go func() {
		for at := range there {
			back <- time.Since(at)
		}
		close(back)
	}()
	for range n {
		time.Sleep(50 * time.Microsecond) // it sleeps when it is woken, as an engine does
		there <- time.Now()
		took = append(took, <-back)
	}
	close(there)
	return took
}

func outstandingSuite() harness.Suite {
	return harness.Suite{Name: "plane/outstanding", Brief: "time of a registration beside 100 and 10,000 other transfers", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory"} {
			// Each outstanding transfer has a block of its own.
			if err := plane(ctx, r, which, PlaneLayout{Blocks: 16 << 10, BlockBytes: 4 << 10, TP: 1}, []planeRow{outstandingRow(which, 100, 10_000)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func outstandingRow(which string, few, many int) planeRow {
	beside := fmt.Sprintf("%d outstanding", few)
	return planeRow{which, func(_ context.Context, s *planeStage) (harness.Comparison, error) {
		return harness.Comparison{Metrics: []harness.Metric{{Unit: "µs", Goals: []report.Goal{{Beside: beside, Times: 2}}}}, Systems: []harness.System{
			s.crowded(report.Us, many), s.crowded(beside, few),
		}}, nil
	}}
}

// crowded measures write requests while n other transfers are outstanding.
func (s *planeStage) crowded(of string, n int) harness.System {
	one, shape := PlaneShape{Blocks: 1}, PlaneShape{Blocks: 16}
	return harness.System{Of: of, Round: func(context.Context, time.Duration) (harness.Sample, error) {
		first := s.take(n)
		for i := first + waiting(n); i < first+n; i++ {
			s.rank.offer(i, one, s.peers[0].Incarnation)
		}
		if _, err := s.decode.Tell(PlaneOrder{Do: "hold", First: first, Count: n, Shape: one}); err != nil {
			return harness.Sample{}, err
		}
		p, err := s.push(planeMost, shape)
		if err != nil {
			return harness.Sample{}, err
		}
		if held := s.rank.agent.Status().Offers; held < n-waiting(n) {
			return harness.Sample{}, fmt.Errorf("%w: prefill holds %d offers; want %d", load.ErrVoid, held, n-waiting(n))
		}
		if _, err := s.decode.Tell(PlaneOrder{Do: "drop", First: first, Count: n}); err != nil {
			return harness.Sample{}, err
		}
		for i := first; i < first+n; i++ {
			s.rank.agent.Abandon(planeID(i), "the row is over")
		}
		for range n - waiting(n) {
			if _, err := s.rank.freed(); err != nil {
				return harness.Sample{}, err
			}
		}
		return harness.Sample{Figures: []float64{Median(p.Took, Micro)}, Done: planeMost}, nil
	}}
}
