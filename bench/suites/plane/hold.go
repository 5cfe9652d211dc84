package plane

import (
	"fmt"
	"time"

	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/memory"
)

// waiting is how many of so many outstanding transfers are registered and wait for their offer. The others are offered
// and wait in decode's queue. A session takes 4,096 of the first kind.
func waiting(n int) int { return n * 2 / 5 }

// hold has transfers wait.
func (d *planeDecode) hold(o PlaneOrder) error {
	rank := d.ranks[0].agent
	for i := range o.Count {
		if i < waiting(o.Count) {
			rank.Expect(d.expectation(o.First+i, o.Shape))
		} else {
			rank.Queue(planeID(o.First+i), d.known()[0].Incarnation)
		}
	}
	return d.until(func(s agent.Status) bool { return s.Expectations >= waiting(o.Count) })
}

// drop gives them up.
func (d *planeDecode) drop(o PlaneOrder) error {
	for i := range o.Count {
		d.ranks[0].agent.Abandon(planeID(o.First+i), "the row is over")
	}
	err := d.until(func(s agent.Status) bool { return s.Expectations == 0 })
	for len(d.reports) > 0 {
		<-d.reports
	}
	return err
}

// until waits for the agent's books.
func (d *planeDecode) until(ok func(agent.Status) bool) error {
	for range 3000 {
		if ok(d.ranks[0].agent.Status()) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the agent's books do not settle: %+v", d.ranks[0].agent.Status())
}

// copy has the kernel copy what transfers would bring out of the other process's memory, and checks what came.
func (d *planeDecode) copy(o PlaneOrder) (a PlaneAnswer, err error) {
	r := d.ranks[0]
	base, size := d.known()[0].Layout.Regions[0].Base, r.cfg.blockBytes()
	for i := o.First; i < o.First+o.Count; i++ {
		from, to := planeBlocks(r.cfg.Layout, i, o.Shape, prefillSide), planeBlocks(r.cfg.Layout, i, o.Shape, decodeSide)
		into, at := make([][]byte, len(to)), make([]uint64, len(to))
		for j := range to {
			into[j], at[j] = r.memory[int(to[j])*size:][:size], base+uint64(int(from[j])*size)
		}
		if o.Shape.Neighbours {
			into, at = [][]byte{r.memory[int(to[0])*size:][:size*len(to)]}, at[:1]
		}
		r.clear(i, o.Shape)
		start := time.Now()
		for n := len(into); len(into) > 0; into, at = into[n:], at[n:] {
			if o.Single {
				n = 1
			}
			if err := memory.CopyFromProcess(d.pid, into[:n], at[:n]); err != nil {
				return a, err
			}
		}
		a.Took = append(a.Took, time.Since(start))
		if err := r.check(i, o.Shape); err != nil {
			return a, err
		}
	}
	return a, nil
}
