package router

import (
	"context"
	"sync/atomic"
	"time"
)

// term bounds the exchanges with an engine that one goroutine makes one after the other, for as long as it is watched: each by its own
// time, and all by a context. A context for each would be most of what a check allocates.
type term struct {
	ctx   context.Context
	holds atomic.Pointer[leash]
	timer *time.Timer // cuts what holds; nil before the first exchange, and behind one that was cut
}

// newTerm has what is under way end with ctx.
func newTerm(ctx context.Context) *term {
	t := &term{ctx: ctx}
	context.AfterFunc(ctx, func() {
		if l := t.holds.Load(); l != nil {
			l.cut(context.Cause(ctx))
		}
	})
	return t
}

// begin returns what bounds an exchange of at most limit, to be given back by end.
func (t *term) begin(limit time.Duration) *leash {
	if t.timer != nil {
		t.timer.Reset(limit)
		return t.holds.Load()
	}
	l := &leash{}
	t.holds.Store(l)
	t.timer = time.AfterFunc(limit, func() { l.cut(context.DeadlineExceeded) })
	if t.ctx.Err() != nil { // it ended before there was a leash to be cut
		l.cut(context.Cause(t.ctx))
	}
	return l
}

// end is called when the exchange is over.
func (t *term) end() {
	if !t.timer.Stop() || t.holds.Load().why() != nil {
		t.timer = nil
	}
}
