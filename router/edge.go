package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/disconnect"
	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/stored"
)

// edgeSnapshot is what a client's request is read and admitted by. It is never changed.
type edgeSnapshot struct {
	cfg       *config.Config
	fleet     *fleet.Fleet
	limits    openai.Limits                // of bodies
	sealer    *openai.Sealer               // nil: bodies keep their own cache_salt
	clients   Clients                      // nil: everybody may call
	limiter   Limiter                      // nil: nobody is limited
	responses stored.Responses             // nil: stored responses cannot be had
	refused   func(status int, why string) // called once per request that was answered before it was admitted; may be nil
	exchange  *exchange.Snapshot
}

// edgeParts are what the edge works with.
type edgeParts struct {
	log         *slog.Logger
	current     func() *edgeSnapshot // what the next request is read and admitted by
	clients     *disconnect.Watcher
	exchanges   *exchange.Exchanges
	backgrounds *stored.Background
	serves      func() bool // whether an engine may serve, for some model
}

// edge is the server towards clients: it reads requests, admits them, has them served, and sends what came of them. It is safe for
// concurrent use.
type edge struct {
	edgeParts
	bodies clientBodies

	draining   atomic.Bool
	askedReady atomic.Bool   // a client has asked for /readyz
	closing    chan struct{} // closed when nobody waits for a place any more
	close      func()        // closes it, once
}

func newEdge(parts edgeParts) *edge {
	r := &edge{edgeParts: parts, closing: make(chan struct{})}
	r.close = sync.OnceFunc(func() { close(r.closing) })
	return r
}

// drain has probes told that no requests are taken, and has answers tell clients to close their connections. Requests are served as before.
func (r *edge) drain() {
	if !r.draining.Swap(true) {
		r.log.Info("draining", "requests", r.exchanges.Count())
	}
}

// answerProbe returns the status of a probe at the clients' listener.
func (r *edge) answerProbe(does doing) int {
	if does == readiness {
		r.askedReady.Store(true)
		if r.draining.Load() || !r.serves() {
			return http.StatusServiceUnavailable
		}
	}
	return http.StatusOK
}

// newcomer is for how long a connection that has brought nothing is believed to bring something when the router stops.
const newcomer = time.Second

// serve answers clients on ln until ctx ends, then lets the requests under way finish for at most the drain time,
// cuts the rest with an error event, and returns. It closes ln; whatever has connected by then is served. It is to be called
// once.
func (r *edge) serve(ctx context.Context, ln net.Listener) error {
	clients := newArrivals(ln)
	accepting := make(chan error, 1)
	go func() { accepting <- clients.run() }()
	server := r.newServer(r.current().cfg)
	go func() { _ = server.Listener(clients) }() // it ends when clients does
	var failed error
	select {
	case failed = <-accepting:
	case <-ctx.Done():
	}
	r.drain()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.current().cfg.Timeouts.Drain)
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
