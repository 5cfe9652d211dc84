package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"pdrouter/kvplane"
)

// bandwidth pushes large transfers of shuffled blocks, in turns with what limits them.
func bandwidth(beside string, goal float64) func(context.Context, *planeStage) (Row, error) {
	return func(ctx context.Context, s *planeStage) (row Row, err error) {
		bytes := s.row.blocks * s.row.layout.BlockBytes
		limit, end, err := s.limit(ctx, beside, bytes)
		if err != nil {
			return row, err
		}
		defer end()
		got, limits := make([]float64, s.rounds), make([]float64, s.rounds)
		for round := range s.rounds {
			for _, which := range order(round, 2) {
				if which == 1 {
					took, err := limit()
					if err != nil {
						return row, err
					}
					limits[round] = float64(bytes) / float64(took.Nanoseconds())
					continue
				}
				a, err := s.push(1)
				if err != nil {
					return row, err
				}
				got[round] = float64(bytes) / float64(a.Ready[0].Nanoseconds())
			}
			fmt.Fprint(s.out, ".")
		}
		return pairOf(s.row.name, "GB/s", beside, got, limits, Goal{Beside: beside, Times: goal, AtLeast: true}), nil
	}
}

// limit returns what moves the same bytes without a plane.
func (s *planeStage) limit(ctx context.Context, which string, bytes int) (func() (time.Duration, error), func(), error) {
	if which != "bare socket loop" {
		one := func(to, from []byte) error { copy(to, from); return nil }
		if which != "plain copy" {
			one = kvplane.CopyByKernel
		}
		to, free, err := kvplane.AllocateMemory(len(s.rank.memory))
		if err != nil {
			return nil, nil, err
		}
		copy(to, s.rank.memory) // its pages are there
		i := 0
		return func() (time.Duration, error) {
			i++
			from, into := planeBlocks(s.row.layout, i, s.row.blocks, prefillSide), planeBlocks(s.row.layout, i, s.row.blocks, decodeSide)
			size := s.row.layout.BlockBytes
			start := time.Now()
			for j := range from {
				if err := one(to[int(into[j])*size:][:size], s.rank.memory[int(from[j])*size:][:size]); err != nil {
					return 0, err
				}
			}
			return time.Since(start), nil
		}, func() { _ = free() }, nil
	}
	a, err := s.tell(planeOrder{Do: "sink", Bytes: bytes, Conns: 1})
	if err != nil {
		return nil, nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		return nil, nil, err
	}
	answer := make([]byte, 1)
	return func() (time.Duration, error) {
		start := time.Now()
		if _, err := c.Write(s.rank.memory[:bytes]); err != nil {
			return 0, err
		}
		_, err := io.ReadFull(c, answer)
		return time.Since(start), err
	}, func() { _ = c.Close() }, nil
}

// registrations is how many a round has.
const registrations = 200

// register measures from a registration until decode is ready, with the offer at hand.
func register(goal float64) func(context.Context, *planeStage) (Row, error) {
	return func(ctx context.Context, s *planeStage) (row Row, err error) {
		limit, end, err := s.limit(ctx, "plain copy", 0)
		if err != nil {
			return row, err
		}
		defer end()
		var got, limits []float64
		for range s.rounds {
			var copies []time.Duration
			for range registrations {
				took, err := limit()
				if err != nil {
					return row, err
				}
				copies = append(copies, took)
			}
			a, err := s.push(registrations)
			if err != nil {
				return row, err
			}
			got, limits = append(got, middle(a.Ready)), append(limits, middle(copies))
			fmt.Fprint(s.out, ".")
		}
		return pairOf(s.row.name, "µs", "plain copy", got, limits, atMost(goal)...), nil
	}
}

// release measures from the completion that the transport hands over until the engine's goroutine has decode released.
func release(goal float64) func(context.Context, *planeStage) (Row, error) {
	return func(_ context.Context, s *planeStage) (row Row, err error) {
		var got, limits []float64
		for range s.rounds {
			a, err := s.push(registrations)
			if err != nil {
				return row, err
			}
			got, limits = append(got, middle(a.Release)), append(limits, handover())
			fmt.Fprint(s.out, ".")
		}
		return pairOf(s.row.name, "µs", "bare channel", got, limits, atMost(goal)...), nil
	}
}

// handover is how long one goroutine needs to wake another one through a channel, in µs.
func handover() float64 {
	there, back := make(chan time.Time), make(chan time.Duration)
	go func() {
		for at := range there {
			back <- time.Since(at)
		}
		close(back)
	}()
	var took []time.Duration
	for range registrations {
		time.Sleep(50 * time.Microsecond) // it sleeps when it is woken, as an engine does
		there <- time.Now()
		took = append(took, <-back)
	}
	close(there)
	return middle(took)
}

// waiting is how many of so many outstanding transfers are registered and wait for their offer. The others are offered
// and wait in decode's queue. A session takes 4,096 of the first kind.
func waiting(n int) int { return n * 2 / 5 }

// outstanding measures a registration's way beside few and beside many transfers that wait on both agents.
func outstanding(few, many int, goal float64) func(context.Context, *planeStage) (Row, error) {
	return func(_ context.Context, s *planeStage) (row Row, err error) {
		got, limits := make([]float64, s.rounds), make([]float64, s.rounds)
		for i := range 2 * s.rounds {
			n, into := few, limits
			if order(i/2, 2)[i%2] == 0 {
				n, into = many, got
			}
			first := s.next
			s.next += n
			for i := first + waiting(n); i < first+n; i++ {
				s.offer(i, 1)
			}
			if _, err := s.tell(planeOrder{Do: "hold", First: first, Count: n, Blocks: 1}); err != nil {
				return row, err
			}
			a, err := s.push(registrations)
			if err != nil {
				return row, err
			}
			into[i/2] = middle(a.Ready)
			if held := s.rank.agent.Status().Offers; held < n-waiting(n) {
				return row, fmt.Errorf("%w: prefill holds %d offers; want %d", errVoid, held, n-waiting(n))
			}
			if _, err := s.tell(planeOrder{Do: "drop", First: first, Count: n}); err != nil {
				return row, err
			}
			for i := first; i < first+n; i++ {
				s.rank.agent.Abandon(planeID(i), "the row is over")
			}
			for range n - waiting(n) {
				if _, err := s.sent(); err != nil {
					return row, err
				}
			}
			fmt.Fprint(s.out, ".")
		}
		beside := fmt.Sprintf("%d outstanding", few)
		return pairOf(s.row.name, "µs", beside, got, limits, Goal{Beside: beside, Times: goal}), nil
	}
}

// idle measures the CPU time of a process whose agent has nothing to do, and then of the same process with a bare NIXL
// agent that runs NIXL's own progress thread.
func idle(_ context.Context, s *planeStage) (row Row, err error) {
	var figures [2]float64
	for i := range figures {
		if i == 1 {
			if _, err := s.tell(planeOrder{Do: "thread"}); err != nil {
				return row, err
			}
		}
		time.Sleep(time.Second) // what was under way has settled
		const span = 5 * time.Second
		before, err := cpuOf("/proc", s.decode.pid)
		if err != nil {
			return row, err
		}
		time.Sleep(span)
		after, err := cpuOf("/proc", s.decode.pid)
		if err != nil {
			return row, err
		}
		figures[i] = 100 * float64(after-before) / float64(span)
		fmt.Fprint(s.out, ".")
	}
	return pairOf(s.row.name, "% core", "NIXL's progress thread", figures[:1], figures[1:], atMost(0.5)...), nil
}

// atMost is the goal of so many of the row's units; of none for 0.
func atMost(units float64) []Goal {
	if units == 0 {
		return nil
	}
	return []Goal{{Plus: units}}
}

// middle is the median in µs.
func middle(d []time.Duration) float64 {
	f := make([]float64, len(d))
	for i, x := range d {
		f[i] = float64(x.Nanoseconds()) / 1000
	}
	return spread(f).Median
}
