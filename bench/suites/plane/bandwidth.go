package plane

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
	"pdrouter/kvplane/memory"
)

func bandwidthSuite() harness.Suite {
	return harness.Suite{Name: "plane/bandwidth", Brief: "GB/s of pushes by size, number and order of blocks", Run: func(ctx context.Context, r *harness.Run) error {
		for _, which := range []string{"nixl", "memory", "socket"} {
			for _, kib := range []int{4, 18, 32} {
				l := PlaneLayout{Blocks: 2048, BlockBytes: kib << 10, TP: 1}
				if err := plane(ctx, r, which, l, bandwidthRows(which, kib)); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// bandwidthRows are those of one size of blocks.
func bandwidthRows(which string, kib int) []planeRow {
	var rows []planeRow
	for _, n := range []int{1, 32, 1024} {
		for _, neighbours := range []bool{false, true} {
			if neighbours && (n == 1 || which == "socket") { // one block is its own neighbour; sockets join what they send anyway
				continue
			}
			rows = append(rows, bandwidthRow(which, kib, PlaneShape{n, neighbours}))
		}
	}
	return rows
}

func bandwidthRow(which string, kib int, shape PlaneShape) planeRow {
	name := fmt.Sprintf("%s %d KiB × %d", which, kib, shape.Blocks)
	if shape.Neighbours {
		name += " neighbours"
	}
	return planeRow{name, func(ctx context.Context, s *planeStage) (harness.Comparison, error) {
		bytes := shape.Blocks * s.layout.BlockBytes
		m := harness.Metric{Unit: "GB/s"}
		c := harness.Comparison{Systems: []harness.System{s.pushing(shape, func(p pushed) []float64 { return []float64{rate(bytes, p.Took)} })}}
		if which == "socket" {
			if shape.Blocks == 1024 {
				m.Goals = []report.Goal{{Beside: socketLoop, Times: 0.9, AtLeast: true}}
			}
			loop, err := s.socketLoop(ctx, bytes, func(took []time.Duration) float64 { return rate(bytes, took) })
			loop.Of = socketLoop
			c.Systems, c.Metrics = append(c.Systems, loop), []harness.Metric{m}
			return c, err
		}
		if shape.Blocks == 1024 {
			m.Goals = []report.Goal{{Beside: "process_vm_readv", Times: 0.9, AtLeast: true}, {Beside: "memcpy", Times: 0.9, AtLeast: true}}
		}
		memcpy, err := s.memcpy(shape)
		if err != nil {
			return c, err
		}
		c.Systems = append(c.Systems, s.kernel("process_vm_readv", shape, false, func(took []time.Duration) float64 { return rate(bytes, took) }), memcpy)
		if which == "nixl" {
			hand, err := s.byHand(shape, func(a PlaneAnswer, _ []barePost) []float64 { return []float64{rate(bytes, a.Took)} })
			if err != nil {
				return c, err
			}
			c.Systems = append(c.Systems, hand, s.kernel(callEach, shape, true, func(took []time.Duration) float64 { return rate(bytes, took) }))
			if kib == 32 { // its threads start anew each round, which takes a second
				c.Systems = append(c.Systems, s.byThread(PlaneOrder{Do: "ask", Shape: shape}, func(a PlaneAnswer) []float64 { return []float64{rate(bytes, a.Took)} }))
			}
		}
		c.Metrics = []harness.Metric{m}
		return c, nil
	}}
}

// kernel is the kernel's copy between the two processes as a system: with single a call for each block.
func (s *planeStage) kernel(of string, shape PlaneShape, single bool, figure func([]time.Duration) float64) harness.System {
	return sliced(of, func(_ context.Context, n int) ([]float64, error) {
		a, err := s.decode.Tell(PlaneOrder{Do: "copy", First: s.take(n), Count: n, Shape: shape, Single: single})
		if err != nil {
			return nil, err
		}
		return []float64{figure(a.Took)}, nil
	})
}

// memcpy is a plain copy in this process as a system, in GB/s.
func (s *planeStage) memcpy(shape PlaneShape) (harness.System, error) {
	to, free, err := memory.Allocate(len(s.rank.memory))
	if err != nil {
		return harness.System{}, err
	}
	s.ended = append(s.ended, free)
	copy(to, s.rank.memory) // its pages are there
	size := s.layout.BlockBytes
	return sliced("memcpy", func(_ context.Context, n int) ([]float64, error) {
		took := make([]time.Duration, n)
		for k := range took {
			i := s.take(1)
			from, into := planeBlocks(s.layout, i, shape, prefillSide), planeBlocks(s.layout, i, shape, decodeSide)
			start := time.Now()
			for j := range from {
				copy(to[int(into[j])*size:][:size], s.rank.memory[int(from[j])*size:][:size])
			}
			took[k] = time.Since(start)
		}
		return []float64{rate(shape.Blocks*size, took)}, nil
	}), nil
}

// The names of limits.
const (
	socketLoop = "bare socket loop"
	callEach   = "a system call each"
)

// socketLoop is a connection without a plane as a system: so many bytes there, one back.
func (s *planeStage) socketLoop(ctx context.Context, bytes int, figure func([]time.Duration) float64) (harness.System, error) {
	a, err := s.decode.Tell(PlaneOrder{Do: "sink", Bytes: bytes})
	if err != nil {
		return harness.System{}, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		return harness.System{}, fmt.Errorf("bench: %w", err)
	}
	s.ended = append(s.ended, c.Close)
	answer := make([]byte, 1)
	return sliced(rawTrip, func(_ context.Context, n int) ([]float64, error) {
		took := make([]time.Duration, n)
		for k := range took {
			start := time.Now()
			if _, err := c.Write(s.rank.memory[:bytes]); err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
			if _, err := io.ReadFull(c, answer); err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
			took[k] = time.Since(start)
		}
		return []float64{figure(took)}, nil
	}), nil
}
