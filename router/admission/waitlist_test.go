package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// oracleQueue is the queue as one list that is looked through from end to end.
type oracleQueue struct {
	running int
	list    []*Waiter
}

func (o *oracleQueue) before(a, b *Waiter) bool {
	ka := a.request.Arrived.Add(-time.Duration(a.request.Priority) * priorityWorth)
	kb := b.request.Arrived.Add(-time.Duration(b.request.Priority) * priorityWorth)
	return ka.Before(kb) || ka.Equal(kb) && a.request.Priority > b.request.Priority
}

func (o *oracleQueue) first() *Waiter {
	var best *Waiter
	for _, e := range o.list {
		if best == nil || o.before(e, best) {
			best = e
		}
	}
	return best
}

func (o *oracleQueue) without(e *Waiter) bool {
	n := len(o.list)
	o.list = slices.DeleteFunc(o.list, func(x *Waiter) bool { return x == e })
	return len(o.list) < n
}

func (o *oracleQueue) offer(e *Waiter, max, length int) (placed, *Waiter) {
	if len(o.list) == 0 && o.running < max {
		o.running++
		return placeTaken, nil
	}
	var out *Waiter
	if len(o.list) >= length {
		for _, x := range o.list { // the last that came of the lowest
			if out == nil || x.request.Priority <= out.request.Priority {
				out = x
			}
		}
		if out == nil || out.request.Priority >= e.request.Priority {
			return placeDenied, nil
		}
		o.without(out)
	}
	o.list = append(o.list, e)
	return placeWaits, out
}

// TestQueueAgainstOracle has requests of several priorities come, leave, run and end, in time of its own, with places that come
// and go.
func TestQueueAgainstOracle(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 63))
		var q waitlist
		var o oracleQueue
		now := time.Unix(1_700_000_000, 0)
		maxRun, length := 1+rng.IntN(4), rng.IntN(6)
		var all []*Waiter
		check := func(what string, ok bool) {
			t.Helper()
			if !ok {
				t.Fatalf("seed %d: %s: running %d and %d, waiting %d and %d", seed, what, q.running, o.running, q.waiting, len(o.list))
			}
		}
		grant := func() {
			for {
				got := q.next(maxRun)
				var want *Waiter
				if o.running < maxRun {
					if want = o.first(); want != nil {
						o.without(want)
						o.running++
					}
				}
				check("who is next", got == want)
				if got == nil {
					return
				}
				// Nobody was passed by one that came more than its priority is worth behind it.
				for _, e := range o.list {
					ahead := time.Duration(got.request.Priority-e.request.Priority) * priorityWorth
					check("aging", got.request.Arrived.Sub(e.request.Arrived) <= max(ahead, 0))
				}
			}
		}
		for range 200 {
			now = now.Add(time.Duration(rng.IntN(700)) * time.Millisecond)
			switch rng.IntN(5) {
			case 0, 1:
				e := &Waiter{request: Request{Priority: rng.IntN(4) - 1, Arrived: now, Tenant: string('a' + rune(rng.IntN(3))), Session: rng.Uint64N(3)}}
				all = append(all, e)
				gp, gout := q.offer(e, maxRun, length)
				wp, wout := o.offer(e, maxRun, length)
				check(fmt.Sprintf("offer %d, %d", gp, wp), gp == wp && gout == wout)
			case 2:
				if o.running > 0 {
					q.done()
					o.running--
				}
				grant()
			case 3:
				if len(all) > 0 {
					e := all[rng.IntN(len(all))]
					check("remove", q.leave(e) == o.without(e))
				}
			case 4:
				maxRun = 1 + rng.IntN(4)
				grant()
			}
			check("counts", q.running == o.running && q.waiting == len(o.list) && q.waiting <= max(length, 0))
			n := 0
			for _, l := range q.levels {
				for e := l.line.first; e != nil; e = e.next[ofPriority] {
					n++
				}
			}
			check("lists", n == q.waiting)
		}
	}
}
