package router

import (
	"context"
	"time"
)

// survive runs f and has the process live on if it panics. It reports whether f came to its end.
func (r *Router) survive(what string, f func()) (whole bool) {
	defer func() {
		if v := recover(); v != nil {
			r.outlived.Add(1)
			r.log.Error("panic in the background", "in", what, "panic", v, "stack", stack())
		}
	}()
	f()
	return true
}

// afterPanic is the pause before what has panicked is begun again.
const afterPanic = time.Second

// persist runs f, which ends with ctx, and begins it anew if it panics: nobody else would do its work.
func (r *Router) persist(ctx context.Context, what string, f func()) {
	for !r.survive(what, f) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(afterPanic):
		}
	}
}
