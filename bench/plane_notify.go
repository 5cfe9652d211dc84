package bench

import (
	"context"
	"fmt"
	"time"
)

const notifyAbout = planeVoid + "From the moment at which prefill's agent hands a write of one block of 256 bytes to its transport, with the completion's notification behind it, until decode's agent has seen the completion: both processes read one clock. It is one way, and a write and its notification on it.\n\n" +
	"- **raw round trip**: there and back over the same transport between the same processes without a plane: a message of a bare NIXL agent and its answer, both agents polled without a pause; 64 bytes over a socket and one back.\n" +
	"- **NIXL's progress thread**: the same round trip between agents with NIXL's own threads: with whoever asks and answers, four that do not rest on this machine's CPUs, where there may be two.\n"

// tripGoal is how far the plane may be from the transport.
var tripGoal = Goal{Beside: rawTrip, Times: 1.5, Plus: 5}

func notifySuite() Suite {
	return Suite{Name: "plane/notify", Brief: "a completion sent until it is seen, beside the raw round trip", About: notifyAbout, run: func(ctx context.Context, r *Run) error {
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

const countAbout = planeVoid + "One prefill rank writes a block to each of N tensor-parallel consumers, which are agents of their own in decode's process. From the moment at which the last of the N writes is handed to the transport until decode's engine is released: all its ranks have counted.\n\n" +
	"- **raw round trip**: as in plane/notify, in turns with it.\n" +
	"- **bare agents in turns**: N bare NIXL agents in decode's process, which one goroutine looks at one after the other without a pause, and one of prefill that makes and posts N writes: from the last post until the last of the N notifications is seen, which nobody is told.\n\n" +
	"N agents that are polled share this machine's CPUs with prefill's, so over NIXL N beyond their number waits for a turn.\n"

func countSuite() Suite {
	return Suite{Name: "plane/count", Brief: "decode released after the last of N tensor-parallel consumers", About: countAbout, run: func(ctx context.Context, r *Run) error {
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
