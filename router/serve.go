package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"pdrouter/kvplane"
)

// Serve answers clients on ln until ctx ends, then lets the requests under way finish for at most the drain time,
// cuts the rest with an error event, and returns. It closes ln.
func (r *Router) Serve(ctx context.Context, ln net.Listener) error {
	app := r.edge()
	served := make(chan error, 1)
	clients := newArrivals(ln)
	go func() { served <- app.Listener(clients) }()
	select {
	case err := <-served:
		if err == nil {
			err = errors.New("the listener ended")
		}
		return fmt.Errorf("router: serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	r.draining.Store(true)
	r.log.Info("draining", "requests", r.live.len())
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeouts.Drain)
	defer cancel()
	clients.closeSilent()
	err := app.Server().ShutdownWithContext(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		for _, x := range r.live.all() {
			x.post(mail{e: event{kind: evShutdown, why: whyShutdown}})
		}
		err = nil
	}
	// Answers are on their way out: give them the time of one write, at most a second or so.
	for i := 0; i < 100 && r.live.len() > 0; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	if serr := <-served; err == nil {
		err = serr
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
	wg.Go(func() { r.keepWarm(ctx) })
	wg.Go(func() { r.fleet.watch(ctx, r.cfg.Timeouts.Health, r.log, r.back) })
	for _, e := range r.fleet.engines {
		if e.side != nil && r.parts.Stock != nil {
			wg.Go(func() { r.watchSide(ctx, e) })
		}
		if e.control != "" {
			wg.Go(func() { r.follow(ctx, e) })
		}
	}
	<-ctx.Done()
	return nil
}

// follow enters an engine's events into the books until ctx ends.
func (r *Router) follow(ctx context.Context, e *engine) {
	defer e.followed.Store(false)
	err := kvplane.Watch(ctx, r.control, e.control, r.parts.Token, func(ev kvplane.TransferEvent) {
		switch ev.Event {
		case "open":
			e.streams.Add(1)
			e.followed.Store(true)
			r.log.Info("event stream is open", "engine", e.name)
		case "closed":
			e.followed.Store(false)
			r.log.Warn("no event stream; books lack events until there is one", "engine", e.name, "why", ev.Reason)
		case "gap":
			e.streams.Add(1)
			r.log.Warn("event stream was too fast; books lack events", "engine", e.name)
		default:
			r.books.note(e.name, ev, time.Now())
		}
	})
	if err != nil && ctx.Err() == nil {
		r.log.Warn("event stream", "engine", e.name, "err", err)
	}
}
