package bench

import (
	"context"
	"fmt"
	"time"
)

func registerSuite() Suite {
	return Suite{Name: "plane/register", Brief: "time from a registration until its blocks have arrived", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory"} {
			if err := r.plane(ctx, which, planeLayout{Blocks: 1024, BlockBytes: 32 << 10, TP: 1}, []planeRow{registerRow(which)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func registerRow(which string) planeRow {
	shape := planeShape{Blocks: 16}
	return planeRow{which, func(_ context.Context, s *planeStage) (contest, error) {
		c := contest{metrics: []metric{{unit: "µs"}}, contenders: []contender{
			s.pushing(shape, func(p pushed) []float64 { return []float64{median(p.Took, micro)} }),
			s.kernel("process_vm_readv", shape, false, func(took []time.Duration) float64 { return median(took, micro) }),
		}}
		if which != "nixl" {
			return c, nil
		}
		c.metrics[0].goals = []Goal{{Plus: 100}, {Beside: "NIXL by hand", Times: 1.25}}
		hand, err := s.byHand(shape, func(a planeAnswer, _ []barePost) []float64 { return []float64{median(a.Took, micro)} })
		c.contenders = append(c.contenders, hand)
		return c, err
	}}
}

func releaseSuite() Suite {
	return Suite{Name: "plane/release", Brief: "time from the arrival of a completion until the engine has decode released", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory"} {
			if err := r.plane(ctx, which, planeLayout{Blocks: 1024, BlockBytes: 32 << 10, TP: 1}, []planeRow{releaseRow(which)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func releaseRow(which string) planeRow {
	return planeRow{which, func(_ context.Context, s *planeStage) (contest, error) {
		return contest{metrics: []metric{{unit: "µs", goals: []Goal{{Plus: 50}}}}, contenders: []contender{
			s.pushing(planeShape{Blocks: 16}, func(p pushed) []float64 { return []float64{median(p.Release, micro)} }),
			sliced("bare channel", func(_ context.Context, n int) ([]float64, error) { return []float64{median(handover(n), micro)}, nil }),
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

func outstandingSuite() Suite {
	return Suite{Name: "plane/outstanding", Brief: "time of a registration beside 100 and 10,000 other transfers", run: func(ctx context.Context, r *Run) error {
		for _, which := range []string{"nixl", "memory"} {
			// Each outstanding transfer has a block of its own.
			if err := r.plane(ctx, which, planeLayout{Blocks: 16 << 10, BlockBytes: 4 << 10, TP: 1}, []planeRow{outstandingRow(which, 100, 10_000)}); err != nil {
				return err
			}
		}
		return nil
	}}
}

func outstandingRow(which string, few, many int) planeRow {
	beside := fmt.Sprintf("%d outstanding", few)
	return planeRow{which, func(_ context.Context, s *planeStage) (contest, error) {
		return contest{metrics: []metric{{unit: "µs", goals: []Goal{{Beside: beside, Times: 2}}}}, contenders: []contender{
			s.crowded(us, many), s.crowded(beside, few),
		}}, nil
	}}
}

// crowded measures registrations while n other transfers are outstanding.
func (s *planeStage) crowded(of string, n int) contender {
	one, shape := planeShape{Blocks: 1}, planeShape{Blocks: 16}
	return contender{of: of, round: func(context.Context, time.Duration) (sample, error) {
		first := s.take(n)
		for i := first + waiting(n); i < first+n; i++ {
			s.rank.offer(i, one, s.peers[0].Incarnation)
		}
		if _, err := s.decode.tell(planeOrder{Do: "hold", First: first, Count: n, Shape: one}); err != nil {
			return sample{}, err
		}
		p, err := s.push(planeMost, shape)
		if err != nil {
			return sample{}, err
		}
		if held := s.rank.agent.Status().Offers; held < n-waiting(n) {
			return sample{}, fmt.Errorf("%w: prefill holds %d offers; want %d", errVoid, held, n-waiting(n))
		}
		if _, err := s.decode.tell(planeOrder{Do: "drop", First: first, Count: n}); err != nil {
			return sample{}, err
		}
		for i := first; i < first+n; i++ {
			s.rank.agent.Abandon(planeID(i), "the row is over")
		}
		for range n - waiting(n) {
			if _, err := s.rank.freed(); err != nil {
				return sample{}, err
			}
		}
		return sample{figures: []float64{median(p.Took, micro)}, done: planeMost}, nil
	}}
}
