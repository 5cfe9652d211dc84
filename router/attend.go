package router

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// lingering is between two looks at engines that are of no configuration any more and still have requests.
const lingering = 50 * time.Millisecond

// attend looks after every engine of the present configuration until ctx ends: its health, its side channel, its event
// stream. One that the configuration loses is attended until its last leg has ended, and then let go.
func (r *Router) attend(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	attended := make(map[*engine]context.CancelFunc)
	note := func() {
		names := make(map[string]bool, len(attended))
		for e := range attended {
			names[e.name] = true
		}
		r.attended.Store(&names)
	}
	defer func() {
		for e, stop := range attended {
			stop()
			e.up.Close()
		}
	}()
	for {
		f := r.now().fleet
		for _, e := range f.engines {
			if attended[e] != nil {
				continue
			}
			its, stop := context.WithCancel(ctx)
			attended[e] = stop
			r.attendOne(its, e, &wg)
		}
		note()
		late := false
		for e, stop := range attended {
			switch {
			case f.engine(e.name) == e:
			case e.inFlight.Load() > 0:
				late = true
			default:
				stop()
				e.up.Close()
				r.left.drop(e) // else what is kept of engines that come and go grows for ever
				delete(attended, e)
			}
		}
		note()
		r.forgetLost()
		var again <-chan time.Time
		if late {
			again = time.After(lingering)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.applied:
		case <-again:
		}
	}
}

// Knows reports whether an engine is of the configuration, or still has requests from when it was.
func (r *Router) Knows(engine string) bool {
	if r.now().fleet.engine(engine) != nil {
		return true
	}
	names := r.attended.Load()
	return names != nil && (*names)[engine]
}

// forgetLost drops what is kept under the names of engines that the configuration lost, once they have ended their last
// request, unless other engines have these names.
func (r *Router) forgetLost() {
	r.applying.Lock()
	gone := slices.Collect(maps.Keys(r.lost))
	gone = slices.DeleteFunc(gone, r.Knows)
	for _, name := range gone {
		delete(r.lost, name)
	}
	r.applying.Unlock()
	parts := r.now().parts
	for _, name := range gone {
		r.report.Transfers.Forget(name)
		if parts.Reclaim != nil {
			parts.Reclaim.Forget(name)
		}
		if parts.Gone != nil {
			parts.Gone(name)
		}
	}
}

// attendOne starts what looks after one engine.
func (r *Router) attendOne(ctx context.Context, e *engine, wg *sync.WaitGroup) {
	wg.Go(func() { r.tasks.Keep(ctx, "health checks", func() { r.watchHealth(ctx, e) }) })
	wg.Go(func() { r.tasks.Keep(ctx, "models", func() { r.watchModels(ctx, e) }) })
	if e.side != nil && r.now().parts.Stock != nil {
		wg.Go(func() { r.tasks.Keep(ctx, "side channel", func() { r.watchSide(ctx, e) }) })
	}
	if e.control != "" {
		wg.Go(func() { r.tasks.Keep(ctx, "event stream", func() { r.follow(ctx, e) }) })
	}
}
