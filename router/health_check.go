package router

import (
	"context"
	"math/rand/v2"
	"time"
)

// firstChecks is the time over which the first checks of many engines are spread.
const firstChecks = 100 * time.Millisecond

// watchHealth checks the health of an engine until ctx ends, at times that chance keeps apart from those of others.
func (r *Router) watchHealth(ctx context.Context, e *engine) {
	next := time.NewTimer(rand.N(min(firstChecks, time.Duration(len(r.now().fleet.engines)+1)*time.Millisecond)))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-e.recheck:
		}
		every := r.now().cfg.Timeouts.Health
		ok := e.check(ctx, every)
		if ctx.Err() != nil {
			return
		}
		switch {
		case ok && e.down.Load():
			r.back(ctx, e)
		case ok:
			e.reached()
		case e.missed():
			r.log.Warn("engine is down", "engine", e.name)
		}
		next.Reset(every - every/8 + rand.N(every/4+1))
	}
}

// check asks the engine's health route, for at most timeout but no less than a second.
func (e *engine) check(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, max(timeout, time.Second))
	defer cancel()
	resp, err := e.up.do(ctx, &upstreamRequest{Method: "GET", Path: "/health", Header: e.header[1:]})
	if err != nil {
		return false
	}
	defer resp.Close()
	if _, err := resp.ReadAll(nil, 1<<20); err != nil {
		return false
	}
	return resp.Status == 200
}
