package router

import (
	"log/slog"

	"pdrouter/internal/background"
	"pdrouter/internal/disconnect"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
	"pdrouter/router/relay"
	"pdrouter/router/report"
	"pdrouter/router/upstream"
)

// exchangeParts are what all exchanges work with.
type exchangeParts struct {
	log       *slog.Logger
	clients   *disconnect.Watcher
	tasks     *background.Tasks // legs may outlive their requests: they end with it
	cancels   *upstream.CancelSet
	pairs     *fleet.Handshakes
	monitor   *monitor.Monitor
	reclaim   *reclaim.Reclaimer
	transfers *kvtransfer.Transfers
	report    *report.Reporter
}

// exchanges is what all exchanges have in common. It is safe for concurrent use.
type exchanges struct {
	exchangeParts
	goroutines  *background.Pool // of legs
	legRequests leg.Requests
	streams     relay.Streams
	live        live
}

// keptGoroutines is how many idle goroutines are kept for legs: as many as requests usually are in their first steps at once.
const keptGoroutines = 64

func newExchanges(parts exchangeParts) *exchanges {
	return &exchanges{exchangeParts: parts, goroutines: background.NewPool(keptGoroutines)}
}

// close ends the goroutines that are kept for legs. No exchange may run.
func (r *exchanges) close() { r.goroutines.Close() }

// count is how many requests are under way, as clients count them.
func (r *exchanges) count() int { return r.live.len() }

// composed notes that one request more, or one less, is under way that consists of branches.
func (r *exchanges) composed(by int) { r.live.count(by) }

// shutDown has every request under way end: the gateway stops.
func (r *exchanges) shutDown() {
	for _, x := range r.live.all() {
		x.enqueue(envelope{e: dispatch.Event{Kind: dispatch.EvShutdown, Why: reason.Shutdown}})
	}
}
