package handshake

import (
	"container/heap"
	"container/list"
	"context"
	"time"

	"pdrouter/metadata"
)

// job is one handshake: queued, in flight, or held back until an earlier one of its pair has returned.
type job struct {
	pair    metadata.Pair
	lines   [2]*line  // of its engines
	waiters list.List // of *waiter, in the order they came
	weight  int
	seq     uint64 // grows from job to job

	in    *jobHeap // where it is queued; nil if it is not
	index int      // in that heap

	cancel context.CancelFunc // nil until it is in flight
	begun  time.Time
	then   *job // waits for this one, which was forgotten, to return
}

// before says which of two jobs begins first: the one that more callers wait for, then the heavier, then the older.
func (j *job) before(k *job) bool {
	if a, b := j.waiters.Len(), k.waiters.Len(); a != b {
		return a > b
	}
	if j.weight != k.weight {
		return j.weight > k.weight
	}
	return j.seq < k.seq
}

// line is one engine's share of the queue.
type line struct {
	engine   string
	jobs     int     // queued, in flight or held back; at 0 the line ends
	inFlight int     // handshakes that run with the engine
	full     jobHeap // queued jobs that found no room at the engine
}

// shakeQueue orders the jobs that wait for their turn. A job for which nobody waits leaves some room free, over all
// and with each of its engines, so that handshakes nobody waits for never keep one from beginning that somebody does.
//
// Jobs stand in open, or in the line of an engine that has no room for them. Whoever has room at an engine finds the
// first of those that stand in its line in open, so the first of open that has room everywhere is the first of all.
type shakeQueue struct {
	total, perEngine int
	inFlight         int
	n                int // queued
	open             jobHeap
	lines            map[string]*line
}

// join gives the job its lines.
func (q *shakeQueue) join(j *job) {
	for i, name := range [2]string{j.pair.Prefill.Engine, j.pair.Decode.Engine} {
		l := q.lines[name]
		if l == nil {
			l = &line{engine: name}
			q.lines[name] = l
		}
		l.jobs++
		j.lines[i] = l
	}
}

// leave takes the job, which is not queued, off its lines for good.
func (q *shakeQueue) leave(j *job) {
	for _, l := range j.lines {
		if l.jobs--; l.jobs == 0 {
			delete(q.lines, l.engine)
		}
	}
}

// push queues a job.
func (q *shakeQueue) push(j *job) {
	q.n++
	q.open.add(j)
}

// remove takes out a queued job.
func (q *shakeQueue) remove(j *job) {
	q.n--
	j.in.remove(j)
	q.refill(j)
}

// change lets f change what a job's place depends on.
func (q *shakeQueue) change(j *job, f func()) {
	if j.in == nil {
		f()
		return
	}
	q.remove(j)
	f()
	q.push(j)
}

// next takes out the first job that has room, and counts it as in flight. It returns nil if there is none.
func (q *shakeQueue) next() *job {
	for len(q.open) > 0 {
		j := q.open[0]
		if q.inFlight >= room(j, q.total) {
			return nil // those behind it have no more room than it
		}
		q.open.remove(j)
		if l := q.busy(j); l != nil {
			l.full.add(j)
			q.refill(j)
			continue
		}
		q.n--
		q.count(j, 1)
		q.refill(j)
		return j
	}
	return nil
}

// done ends a job that was in flight.
func (q *shakeQueue) done(j *job) {
	q.count(j, -1)
	q.refill(j)
}

func (q *shakeQueue) count(j *job, by int) {
	q.inFlight += by
	for _, l := range j.lines {
		l.inFlight += by
	}
}

// refill has the first of those that stand in the lines of j's engines try again, where there is room now.
func (q *shakeQueue) refill(j *job) {
	for _, l := range j.lines {
		if len(l.full) > 0 && l.inFlight < room(l.full[0], q.perEngine) {
			first := l.full[0]
			l.full.remove(first)
			q.open.add(first)
		}
	}
}

// busy returns the line of an engine that has no room for the job, nil if both have.
func (q *shakeQueue) busy(j *job) *line {
	for _, l := range j.lines {
		if l.inFlight >= room(j, q.perEngine) {
			return l
		}
	}
	return nil
}

// room returns how many of n places the job may take: a quarter is kept, one at least, from jobs that nobody waits for.
func room(j *job, n int) int {
	if j.waiters.Len() > 0 || n == 1 {
		return n
	}
	return n - max(1, n/4)
}

// last returns the queued job that would begin last and that nobody waits for, nil if there is none.
func (q *shakeQueue) last() *job {
	var last *job
	see := func(h jobHeap) {
		for _, j := range h {
			if j.waiters.Len() == 0 && (last == nil || last.before(j)) {
				last = j
			}
		}
	}
	see(q.open)
	for _, l := range q.lines {
		see(l.full)
	}
	return last
}

// jobHeap is a heap of queued jobs, the first to begin on top.
type jobHeap []*job

func (h *jobHeap) add(j *job) {
	j.in = h
	heap.Push(h, j)
}

func (h *jobHeap) remove(j *job) {
	heap.Remove(h, j.index)
	j.in = nil
}

// Len implements heap.Interface.
func (h jobHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h jobHeap) Less(i, k int) bool { return h[i].before(h[k]) }

// Swap implements heap.Interface.
func (h jobHeap) Swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].index, h[k].index = i, k
}

// Push implements heap.Interface.
func (h *jobHeap) Push(x any) {
	j := x.(*job)
	j.index = len(*h)
	*h = append(*h, j)
}

// Pop implements heap.Interface.
func (h *jobHeap) Pop() any {
	last := len(*h) - 1
	j := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return j
}
