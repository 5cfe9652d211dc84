package router

import (
	"log/slog"

	"pdrouter/internal/background"
	"pdrouter/internal/disconnect"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/reclaim"
	"pdrouter/router/relay"
	"pdrouter/router/report"
	"pdrouter/router/upstream"
)

// exchanges is what all exchanges have in common. It is safe for concurrent use.
type exchanges struct {
	log        *slog.Logger
	clients    *disconnect.Watcher
	goroutines *background.Pool  // of legs
	tasks      *background.Tasks // legs may outlive their requests: they end with it
	cancels    upstream.CancelSet
	pairs      *fleet.Handshakes
	monitor    *monitor.Monitor
	reclaim    *reclaim.Reclaimer
	transfers  *kvtransfer.Transfers
	report     *report.Reporter

	legRequests leg.Requests
	streams     relay.Streams
	live        live
}
