package plane

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"pdrouter/bench/harness"
)

// openBare starts a bare NIXL agent on each side, beside those of the plane.
func (s *planeStage) openBare(thread bool) error {
	if s.bare[thread] != nil {
		return nil
	}
	b, err := openBareNIXL(fmt.Sprint(s.rank.agent.Record().Agent, "-bare", s.take(1)), s.rank.memory, thread)
	if err != nil {
		return err
	}
	if s.bare == nil {
		s.bare = map[bool]*bareNIXL{}
	}
	s.bare[thread] = b
	blob, err := b.agent.Metadata()
	if err != nil {
		return err
	}
	a, err := s.decode.Tell(PlaneOrder{Do: "bare", Thread: thread, Blob: blob, First: s.take(1)})
	if err != nil {
		return err
	}
	if err := b.meet(a.Blob, s.rank.agent.Record().Layout.Regions[0], s.peers[0].Layout.Regions[0]); err != nil {
		return err
	}
	_, _, err = s.serving(PlaneOrder{Do: "echo", Thread: thread, Count: 4}) // they connect
	return err
}

func (s *planeStage) closeBare(thread bool) error {
	_, err := s.decode.Tell(PlaneOrder{Do: "bare-close", Thread: thread})
	err = errors.Join(err, s.bare[thread].close())
	delete(s.bare, thread)
	return err
}

// serving has prefill's bare agent answer while decode's does what it is told.
func (s *planeStage) serving(o PlaneOrder) (PlaneAnswer, []barePost, error) {
	lists := make(map[int][2][]int32, o.Count)
	for i := o.First; i < o.First+o.Count && o.Do == "ask"; i++ {
		lists[i] = [2][]int32{planeBlocks(s.layout, i, o.Shape, prefillSide), planeBlocks(s.layout, i, o.Shape, decodeSide)}
	}
	var over atomic.Bool
	var posts []barePost
	served := make(chan error, 1)
	go func() {
		var err error
		posts, err = s.bare[o.Thread].serve(func() bool { return !over.Load() }, func(i int) (local, remote []int32) { return lists[i][0], lists[i][1] })
		served <- err
	}()
	a, err := s.decode.Tell(o)
	over.Store(true)
	err = errors.Join(err, <-served)
	return a, posts, err
}

// byHand is NIXL without a plane as a system: decode asks for a transfer, prefill writes it, and its notification is
// seen.
func (s *planeStage) byHand(shape PlaneShape, figures func(PlaneAnswer, []barePost) []float64) (harness.System, error) {
	return sliced("NIXL by hand", func(_ context.Context, n int) ([]float64, error) {
		a, posts, err := s.serving(PlaneOrder{Do: "ask", First: s.take(n), Count: n, Shape: shape})
		if err != nil {
			return nil, err
		}
		return figures(a, posts), nil
	}), s.openBare(false)
}

// byThread is the same with NIXL's progress threads, which live only as long as a round does: they leave no CPU to others. So what
// fills a slice is counted without the agents that a round opens.
func (s *planeStage) byThread(order PlaneOrder, figures func(PlaneAnswer) []float64) harness.System {
	n := 2
	return harness.System{Of: progressThread, Round: func(_ context.Context, d time.Duration) (harness.Sample, error) {
		if err := s.openBare(true); err != nil {
			return harness.Sample{}, err
		}
		order.First, order.Count, order.Thread = s.take(n), n, true
		a, _, err := s.serving(order)
		if err = errors.Join(err, s.closeBare(true)); err != nil {
			return harness.Sample{}, err
		}
		got := harness.Sample{Figures: figures(a), Done: n}
		var took time.Duration
		for _, one := range a.Took {
			took += one
		}
		n = slice(d, took/time.Duration(n))
		return got, nil
	}}
}

const progressThread = "NIXL's progress thread"

// echo is a bare round trip of NIXL's messages as a system.
func (s *planeStage) echo() (harness.System, error) {
	return sliced(rawTrip, func(_ context.Context, n int) ([]float64, error) {
		a, _, err := s.serving(PlaneOrder{Do: "echo", Count: n})
		if err != nil {
			return nil, err
		}
		return []float64{Median(a.Took, Micro)}, nil
	}), s.openBare(false)
}

const rawTrip = "raw round trip"
