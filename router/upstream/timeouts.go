package upstream

import (
	"context"
	"sync/atomic"
	"time"
)

// Timeouts bounds the requests that one goroutine makes one after the other: each by a timeout of its own, and all by a context. It
// uses one Canceler again until that is canceled. A context for each request would be most of what a health check allocates.
type Timeouts struct {
	ctx   context.Context
	cur   atomic.Pointer[Canceler]
	timer *time.Timer // cancels cur; nil before the first request, and after one that was canceled
}

// NewTimeouts returns Timeouts whose requests also end with ctx.
func NewTimeouts(ctx context.Context) *Timeouts {
	t := &Timeouts{ctx: ctx}
	context.AfterFunc(ctx, func() {
		if l := t.cur.Load(); l != nil {
			l.Cancel(context.Cause(ctx))
		}
	})
	return t
}

// Begin returns the context of a request that may take up to limit. End must be called after the request.
func (t *Timeouts) Begin(limit time.Duration) *Canceler {
	if t.timer != nil {
		t.timer.Reset(limit)
		return t.cur.Load()
	}
	l := &Canceler{}
	t.cur.Store(l)
	t.timer = time.AfterFunc(limit, func() { l.Cancel(context.DeadlineExceeded) })
	if t.ctx.Err() != nil { // it ended before there was a Canceler
		l.Cancel(context.Cause(t.ctx))
	}
	return l
}

// End ends the request that the last Begin began.
func (t *Timeouts) End() {
	if !t.timer.Stop() || t.cur.Load().Cause() != nil {
		t.timer = nil
	}
}
