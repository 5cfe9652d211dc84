package router

import (
	"context"
	"net"
	"net/http"

	"pdrouter/router/edge"
	"pdrouter/router/exchange"
)

// Debug is what tests of a whole gateway need and no operator does. internal/routertest uses it; export_test.go has more for the
// tests of this package.
type Debug struct{ r *Router }

// Debug returns the router's Debug.
func (r *Router) Debug() Debug { return Debug{r} }

// Idle reports whether nothing is under way: no request and no leg, not even one that has outlived its request.
func (d Debug) Idle() bool {
	r := d.r
	if r.exchanges.Count() != 0 || r.tasks.Running() != 0 || r.edge.BodyBytes() != 0 {
		return false
	}
	for _, e := range r.snapshot().fleet.Engines {
		if e.InFlight.Load() != 0 || e.Backlog.Load() != 0 || e.Uncollected.Load() != 0 {
			return false
		}
		if !e.Forecast().Idle() {
			return false
		}
	}
	return true
}

// SetDial replaces how the engines that the router has now are connected to. It must be called before Serve and Run.
func (d Debug) SetDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	for _, e := range d.r.snapshot().fleet.Engines {
		e.Upstream.SetDial(dial)
	}
	d.r.control.Transport = &http.Transport{DialContext: dial}
}

// Run returns the run of an engine as its side channel tells it, "" while that is not known.
func (d Debug) Run(engine string) string {
	return d.r.snapshot().fleet.Engine(engine).ChannelReport().Run
}

// Exchanges is what requests are served with, and the snapshot that the next one gets.
func (d Debug) Exchanges() (*exchange.Exchanges, *exchange.Snapshot) {
	return d.r.exchanges, &d.r.snapshot().exchange
}

// Running is how much outlives its request.
func (d Debug) Running() int { return int(d.r.tasks.Running()) }

// Edge is the edge's.
func (d Debug) Edge() edge.Debug { return d.r.edge.Debug() }
