package simulate

import (
	"slices"
	"time"

	"pdrouter/bench/load"
	"pdrouter/policies"
	"pdrouter/router/admission"
	"pdrouter/router/reason"
)

// The gateway's own defaults: timeouts.queue, limits.queue, and how often its queue looks whether there is room.
const (
	longestWait = 10 * time.Second
	mostWaiting = 1024
	lookAgain   = 5 * time.Millisecond
)

// queue is a gateway's queue with by_objective of the queue in front of the modelled engines: packages admission and policies, as router/fleet and
// router/edge use them.
type queue struct {
	r       *replay
	q       admission.Queue
	waiting []*waiting // in the order in which they came
	again   time.Duration
	now     time.Duration
}

// waiting is a request in the queue.
type waiting struct {
	*admission.Waiter
	nth   int
	of    load.Request
	until time.Duration
}

// wall is a time of the replay for the queue.
func wall(at time.Duration) time.Time { return time.Unix(1_700_000_000, 0).Add(at) }

// never is when nothing happens.
const never = 1<<63 - 1

// newQueue returns a queue in the order in which requests come.
func newQueue(r *replay) *queue {
	q := &queue{r: r, again: never}
	q.q.SetLimits(q, mostWaiting)
	return q
}

// Places implements admission.Capacity.
func (q *queue) Places(running, waiting int) int {
	if waiting > 0 {
		q.again = min(q.again, q.now+lookAgain)
	}
	return running + 1
}

// arrive takes a request in.
func (q *queue) arrive(nth int, t load.Request) error {
	q.now = t.At
	ask := q.r.request(t)
	q.r.look(t, t.At.Seconds())
	idle := q.r.Policy.OnIdle(ask, q.r.view, policies.Draw{})
	request := admission.Request{Arrived: wall(t.At), Prompt: t.Input, Ready: func(unbegun, tokens int) bool {
		q.r.look(t, q.now.Seconds())
		return q.r.Policy.Room(ask, q.r.view, policies.Draw{}, unbegun, tokens)
	}}
	if slot, ok := q.q.TryAcquire(request, wall(t.At)); ok {
		return q.r.give(nth, t, t.At, slot)
	}
	got, w := q.q.Enqueue(request, wall(t.At))
	switch {
	case w != nil:
	case got.Why == reason.None:
		return q.r.give(nth, t, t.At, got.Slot)
	default:
		q.refuse(t)
		return nil
	}
	wait := longestWait
	if seconds, bounded := q.r.Policy.Objective("").MaxWait(float64(idle.TTFT), q.r.draws.Uint64()); bounded {
		wait = min(wait, time.Duration(seconds*float64(time.Second)))
	}
	if nth == q.r.kept {
		wait = never - t.At
	}
	q.waiting = append(q.waiting, &waiting{w, nth, t, t.At + wait})
	return q.collect()
}

// next is when something happens in the queue of itself.
func (q *queue) next() time.Duration {
	at := time.Duration(never)
	for _, w := range q.waiting {
		at = min(at, w.until, max(q.again, q.now))
	}
	return at
}

// pass has time pass, until which nothing happens.
func (q *queue) pass(now time.Duration) error {
	q.now = now
	for _, w := range q.waiting {
		if w.until <= now {
			q.r.look(w.of, now.Seconds())
			told := time.Duration(q.r.Policy.RoomIn(q.r.request(w.of), q.r.view, policies.Draw{}) * float64(time.Second))
			q.r.result.Refusals = append(q.r.result.Refusals, Refusal{Told: told, nth: w.nth, at: now})
			q.q.Drop(w.Waiter, reason.Objective, wall(now))
		}
	}
	if q.again <= now {
		q.again = never
		q.q.Update()
	}
	return q.collect()
}

// collect gives engines the requests that have places, and forgets those that were refused.
func (q *queue) collect() error {
	for i := 0; i < len(q.waiting); i++ {
		w := q.waiting[i]
		select {
		case got := <-w.Done():
			q.waiting = slices.Delete(q.waiting, i, i+1)
			i--
			if got.Why != reason.None {
				q.refuse(w.of)
			} else if err := q.r.give(w.nth, w.of, q.now, got.Slot); err != nil {
				return err
			} else if w.nth == q.r.kept {
				q.r.wentOn = q.now
			}
		default:
		}
	}
	return nil
}

// refuse notes a request that is not served.
func (q *queue) refuse(t load.Request) {
	q.r.result.Refused++
	q.r.tally.Add(&load.Outcome{Arrival: load.Arrival{At: t.At, Prompt: t.Input, Tokens: t.Output}, Sent: t.At, Status: reason.Objective.Status(), Ended: q.now})
}

// queued is what Queued is called.
const queued = "cost, queue"

// Queued is the policy cost on n engines of either role, with a queue in front of them.
func Queued(n int, slo load.SLO) (System, error) {
	s, err := Cost(n, slo)
	s.Name, s.Queue = queued, true
	return s, err
}
