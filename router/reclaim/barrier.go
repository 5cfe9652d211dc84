package reclaim

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/upstream"
)

// barrier is where jobs wait until one engine has surely noticed the end of their request, or until a whole later request was handed over
// between two engines.
type barrier struct {
	mu      sync.Mutex
	ends    barrierTimes
	waiting []*barrierWaiter
	asking  int // how many of the waiting have requests sent; the others wait for those of others
	running bool
}

// barrierWaiter is one job that waits.
type barrierWaiter struct {
	since time.Time
	asks  bool
	done  chan struct{} // closed when it is passed
}

// barrierKey names a barrier: of one engine, or of the way from a prefill engine to a decode engine.
type barrierKey struct{ prefill, at *fleet.Engine }

// barrierRequestTime bounds one request of the gateway's own to an engine.
const barrierRequestTime = 20 * time.Second

// wait blocks until the engine has completed a request that was sent long enough after since, and reports false if ctx ends first.
// It sends a request of one token for that.
func (r *Reclaimer) wait(ctx context.Context, s *Snapshot, e *fleet.Engine, model string, since time.Time) bool {
	return r.waitAt(ctx, r.Leaks.barrier(barrierKey{at: e}), since, true, func() bool { return r.small(s, e, model) })
}

// handedOver blocks until a whole request that began long enough after since was handed over between the two engines of m, and reports
// false if ctx ends first. Without asks it sends none: it waits for requests of other jobs, and for handshakes.
func (r *Reclaimer) handedOver(ctx context.Context, m *Job, since time.Time, asks bool) bool {
	return r.waitAt(ctx, r.Leaks.barrier(barrierKey{m.Prefill, m.Decode}), since, asks, func() bool {
		ctx, cancel := context.WithTimeoutCause(r.tasks.Context(), barrierRequestTime, leg.ErrLate)
		defer cancel()
		c := &fleet.Pair{Model: m.model, Connector: m.conn, Prefill: m.Prefill, Decode: m.Decode}
		err := m.Snapshot.HandOff(ctx, c)
		if errors.Is(err, leg.ErrTransferLate) { // as when a request's does not come
			r.pairs.ForgetPair(fleet.StockRuns(m.Prefill, m.Decode))
			r.pairs.Schedule()
		}
		return err == nil
	})
}

// HandedOver notes that a whole request has been handed over between the two.
func (l *Leaks) HandedOver(c *fleet.Pair, sent time.Time) {
	l.mu.Lock()
	f := l.barriers[barrierKey{c.Prefill, c.Decode}]
	l.mu.Unlock()
	if f != nil {
		f.completed(sent)
	}
}

// waitAt blocks until f is passed for what has ended at since, and reports false if ctx ends first. ask sends a request.
func (r *Reclaimer) waitAt(ctx context.Context, f *barrier, since time.Time, asks bool, ask func() bool) bool {
	w := &barrierWaiter{since: since, asks: asks, done: make(chan struct{})}
	f.mu.Lock()
	f.waiting = append(f.waiting, w)
	start := false
	if asks {
		f.ends.add(since)
		f.asking++
		start, f.running = !f.running, true
	}
	f.mu.Unlock()
	if start {
		r.tasks.Go("a barrier", func() { r.run(f, ask) })
	}
	select {
	case <-w.done:
		return true
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.waiting, w); i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
		if asks {
			f.asking--
		}
	}
	return false
}

// run sends a request whenever a job waits for one, until none does.
func (r *Reclaimer) run(f *barrier, ask func() bool) {
	for pause := time.Duration(0); ; {
		f.mu.Lock()
		due, ok := f.ends.due()
		if !ok || f.asking == 0 || r.tasks.Context().Err() != nil {
			f.ends, f.running = barrierTimes{}, false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		select {
		case <-r.tasks.Context().Done():
			continue
		case <-time.After(max(time.Until(due), pause)):
		}
		sent := time.Now()
		passed := false
		r.tasks.Recover("a barrier", func() { passed = ask() })
		if !passed {
			pause = 500 * time.Millisecond
			continue
		}
		pause = 0
		f.completed(sent)
	}
}

// completed notes that a request has completed, and lets those pass that had ended long enough before it was sent.
func (f *barrier) completed(sent time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	limit := f.ends.completed(sent)
	f.waiting = slices.DeleteFunc(f.waiting, func(w *barrierWaiter) bool {
		if w.since.After(limit) {
			return false
		}
		if w.asks {
			f.asking--
		}
		close(w.done)
		return true
	})
}

// small asks an engine for one token of next to no prompt, and reports whether it has answered.
func (r *Reclaimer) small(s *Snapshot, e *fleet.Engine, model string) bool {
	ctx, cancel := context.WithTimeoutCause(r.tasks.Context(), barrierRequestTime, leg.ErrLate)
	defer cancel()
	var h connector.Handoff
	h.Draw()
	var l leg.Leg
	l.Open(ctx, e)
	defer l.End()
	body := openai.AppendString([]byte(`{"model":`), model)
	body = append(body, `,"prompt":"a","max_tokens":1,"temperature":0}`...)
	req := &upstream.Request{Path: openai.PathCompletions, Header: l.Header(nil, h.Request, nil, false), Body: body}
	return l.AskWhole(req, int(s.Limits.Answer)) == leg.Usable
}

// barrierTimes decides which ends of requests an engine has surely noticed: those that were a while ago when a request was sent to
// the engine that has completed since. It is pure; the zero value is ready.
type barrierTimes struct {
	ended []time.Time // oldest first; those not noticed yet
}

// BarrierAfter is the least time between the end of a request and the sending of a later one whose completion shows that the engine has
// noticed that end.
const BarrierAfter = 2 * time.Second

// add notes that a request has ended.
func (f *barrierTimes) add(at time.Time) {
	i := len(f.ended)
	for i > 0 && f.ended[i-1].After(at) {
		i--
	}
	f.ended = append(f.ended, time.Time{})
	copy(f.ended[i+1:], f.ended[i:])
	f.ended[i] = at
}

// due returns when a request sent next is of use; false if no end waits for one.
func (f *barrierTimes) due() (time.Time, bool) {
	if len(f.ended) == 0 {
		return time.Time{}, false
	}
	return f.ended[0].Add(BarrierAfter), true
}

// completed notes that a request has completed, and returns the time up to which ends have been noticed.
func (f *barrierTimes) completed(sent time.Time) time.Time {
	limit := sent.Add(-BarrierAfter)
	n := 0
	for n < len(f.ended) && !f.ended[n].After(limit) {
		n++
	}
	f.ended = append(f.ended[:0], f.ended[n:]...)
	return limit
}
