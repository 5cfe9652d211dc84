package router

import (
	"context"
	"sync"
	"time"
)

// fence is where the endings at one decode engine wait until it has surely noticed them.
type fence struct {
	mu      sync.Mutex
	ends    fencing
	waiting []*fenced
	running bool
}

// fenced is one ending that waits.
type fenced struct {
	since time.Time
	done  chan struct{} // closed when it is passed
}

// fenceTime bounds one request of the router's own to a decode engine.
const fenceTime = 20 * time.Second

// passed blocks until a request has completed at decode that was dispatched long enough after since, and reports false if
// ctx ends first. If nobody else's is known to have, it is the router's own, of one token.
func (r *Router) passed(ctx context.Context, d *engine, model string, since time.Time) bool {
	f, w := r.left.fence(d), &fenced{since: since, done: make(chan struct{})}
	f.mu.Lock()
	f.ends.add(since)
	f.waiting = append(f.waiting, w)
	start := !f.running
	f.running = true
	f.mu.Unlock()
	if start {
		r.ended.Go(func() { r.guard(d, model, f) })
	}
	select {
	case <-w.done:
		return true
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.waiting {
		if o == w {
			f.waiting = append(f.waiting[:i], f.waiting[i+1:]...)
		}
	}
	return false
}

// guard asks decode for one token whenever an ending waits for that, until none does.
func (r *Router) guard(d *engine, model string, f *fence) {
	for pause := time.Duration(0); ; {
		f.mu.Lock()
		due, ok := f.ends.due()
		if !ok || len(f.waiting) == 0 || r.legs.Err() != nil {
			f.ends, f.running = fencing{}, false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		select {
		case <-r.legs.Done():
			continue
		case <-time.After(max(time.Until(due), pause)):
		}
		dispatched := time.Now()
		if !r.small(d, model) {
			pause = 500 * time.Millisecond
			continue
		}
		pause = 0
		f.mu.Lock()
		limit := f.ends.completed(dispatched)
		kept := f.waiting[:0]
		for _, w := range f.waiting {
			if w.since.After(limit) {
				kept = append(kept, w)
			} else {
				close(w.done)
			}
		}
		clear(f.waiting[len(kept):])
		f.waiting = kept
		f.mu.Unlock()
	}
}

// small asks an engine for one token of next to no prompt, and reports whether it has answered.
func (r *Router) small(e *engine, model string) bool {
	ctx, cancel := context.WithTimeoutCause(r.legs, fenceTime, errLegLate)
	defer cancel()
	var h handoff
	h.draw()
	var l call
	l.open(ctx, e)
	defer l.end()
	body := appendString([]byte(`{"model":`), model)
	body = append(body, `,"prompt":"a","max_tokens":1,"temperature":0}`...)
	req := &upstreamRequest{Path: pathCompletions, Header: l.header(nil, h.request, nil, false), Body: body}
	return l.askWhole(req, r.now().cfg.Limits.Answer) == vUsable
}
