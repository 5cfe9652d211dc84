package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"pdrouter/router/config"
)

// newcomer is for how long a connection that has brought nothing is believed to bring something when the router stops.
const newcomer = time.Second

// Timeouts returns the timeouts that the router works by now, defaults filled in.
func (r *Router) Timeouts() config.Timeouts { return r.snapshot().cfg.Timeouts }

// Drain has the router say that it is not ready, and has its answers tell clients to close their connections. Requests are
// served as before: whoever sends them learns in this time that he is to go elsewhere. Serve does the same when it ends.
func (r *Router) Drain() {
	if !r.draining.Swap(true) {
		r.log.Info("draining", "requests", r.exchanges.Count())
	}
}

// Serve answers clients on ln until ctx ends, then lets the requests under way finish for at most the drain time,
// cuts the rest with an error event, and returns. It closes ln; whatever has connected by then is served. It is to be called
// once.
func (r *Router) Serve(ctx context.Context, ln net.Listener) error {
	defer r.backgrounds.Close() // here and not in Close, so that the limiter can still tell other gateways
	clients := newArrivals(ln)
	accepting := make(chan error, 1)
	go func() { accepting <- clients.run() }()
	server := r.newServer(r.snapshot().cfg)
	go func() { _ = server.Listener(clients) }() // it ends when clients does
	var failed error
	select {
	case failed = <-accepting:
	case <-ctx.Done():
	}
	r.Drain()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.snapshot().cfg.Timeouts.Drain)
	defer cancel()
	if failed == nil {
		_ = ln.Close() // it may have been closed already
		<-accepting
	}
	for clients.closeSilent(time.Now().Add(-newcomer)) && stop.Err() == nil {
		select {
		case <-stop.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	clients.closeSilent(time.Now().Add(time.Hour))
	err, late := server.Server().ShutdownWithContext(stop), false // connections are closed when they are idle
	if late = errors.Is(err, context.DeadlineExceeded); late {
		r.turnAway()
		clients.stopReading()
		r.exchanges.ShutDown()
		err = nil
	}
	// Answers are on their way out: give them the time of one write, at most a second or so.
	for i := 0; i < 100 && (r.exchanges.Count() > 0 || late && clients.left() > 0); i++ {
		time.Sleep(10 * time.Millisecond)
	}
	if failed != nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("router: serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// Run checks the engines' health, makes engines known to each other, looks at stock engines' side channels, and follows
// the event streams of the others until ctx ends.
func (r *Router) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.tasks.Keep(ctx, "handshakes", func() { r.hands.Run(ctx) }) })
	wg.Go(func() { r.monitor.Run(ctx) })
	<-ctx.Done()
	return nil
}
