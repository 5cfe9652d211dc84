package router

import (
	"context"
	"net"
	"sync"
	"time"

	"pdrouter/router/config"
)

// Timeouts returns the timeouts that the router works by now, defaults filled in.
func (r *Router) Timeouts() config.Timeouts { return r.snapshot().cfg.Timeouts }

// Drain makes the router report that it is not ready, and its answers close their connections. Requests are served as before, so that load
// balancers have time to react. Serve does the same when it ends.
func (r *Router) Drain() { r.edge.Drain() }

// Serve answers clients on ln until ctx ends, then lets the requests under way finish for at most the drain time,
// cuts the rest with an error event, and returns. It closes ln, and serves connections that were accepted before. Call it once.
func (r *Router) Serve(ctx context.Context, ln net.Listener) error {
	defer r.backgrounds.Close() // here and not in Close, so that the limiter can still tell other gateways
	return r.edge.Serve(ctx, ln)
}

// Run checks the engines' health, makes engines known to each other, looks at stock engines' side channels, follows
// the event streams of the others, and the KV-cache events of all that publish them, until ctx ends.
func (r *Router) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.tasks.Keep(ctx, "handshakes", func() { r.hands.Run(ctx) }) })
	wg.Go(func() { r.monitor.Run(ctx) })
	wg.Go(func() { r.kvEvents.Run(ctx) })
	wg.Go(func() { r.tasks.Keep(ctx, "moves", func() { r.moves.Run(ctx) }) })
	if r.peers != nil {
		wg.Go(func() { r.tasks.Keep(ctx, "load of other gateways", func() { r.peers.Run(ctx) }) })
	}
	r.judgeHandOffs(ctx)
	return nil
}

// judgeEvery is how often it is judged whether engines compute prompts that they should receive, and whether pairs are slow.
const judgeEvery = 5 * time.Second

// judgeHandOffs logs what begins and ends, until ctx ends.
func (r *Router) judgeHandOffs(ctx context.Context) {
	tick := time.NewTicker(judgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			r.snapshot().fleet.Scalings(now) // their means must not depend on when metrics are read
			for _, c := range r.handOffs.Judge(now) {
				switch {
				case c.Prefill != "" && c.Begins:
					r.log.Warn("hand-offs of a pair are slow; answers are right, and first tokens late", "prefill", c.Prefill, "decode", c.Decode, "times_as_long", c.Times, "hand_off_seconds", c.Seconds)
				case c.Prefill != "":
					r.log.Info("hand-offs of a pair are not slow any more", "prefill", c.Prefill, "decode", c.Decode, "after_seconds", c.Lasted.Seconds())
				case c.Begins:
					r.log.Warn("decode engine computes prompts that it should receive; answers are right, and first tokens late", "engine", c.Decode, "part_of_prompts", c.Share)
				default:
					r.log.Info("decode engine receives prompts again", "engine", c.Decode, "after_seconds", c.Lasted.Seconds())
				}
			}
		}
	}
}
