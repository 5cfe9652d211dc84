package exchange

import (
	"log/slog"
	"slices"
	"sync"

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

// Parts are what all exchanges work with.
type Parts struct {
	Log         *slog.Logger
	Disconnects *disconnect.Watcher
	Tasks       *background.Tasks // legs may outlive their requests: they end with it
	Cancels     *upstream.CancelSet
	Pairs       *fleet.Handshakes
	Monitor     *monitor.Monitor
	Reclaim     *reclaim.Reclaimer
	Transfers   *kvtransfer.Transfers
	Report      *report.Reporter
}

// Exchanges is what all exchanges have in common. It is safe for concurrent use.
type Exchanges struct {
	Parts
	goroutines  *background.Pool // of legs
	legRequests leg.Requests
	streams     relay.Streams
	live        live
}

// keptGoroutines is how many idle goroutines are kept for legs: as many as requests usually are in their first steps at once.
const keptGoroutines = 64

// New returns what begins exchanges. Close must be called when none runs any more.
func New(parts Parts) *Exchanges {
	return &Exchanges{Parts: parts, goroutines: background.NewPool(keptGoroutines)}
}

// Close ends the goroutines that are kept for legs. No exchange may run.
func (r *Exchanges) Close() { r.goroutines.Close() }

// Count is how many requests are under way, as clients count them.
func (r *Exchanges) Count() int { return r.live.len() }

// Composed notes that one request more, or one less, is under way that consists of branches.
func (r *Exchanges) Composed(by int) { r.live.count(by) }

// ShutDown has every request under way end, and every one that begins later: the gateway stops.
func (r *Exchanges) ShutDown() {
	for _, x := range r.live.close() {
		x.shutDown()
	}
}

func (x *Exchange) shutDown() {
	x.enqueue(envelope{e: dispatch.Event{Kind: dispatch.EvShutdown, Why: reason.Shutdown}})
}

// live is the set of requests under way.
type live struct {
	mu    sync.Mutex
	items []*Exchange // each knows its index, so that removing one takes constant time
	n     int         // as clients count them: a request that consists of branches is one
	over  bool        // the gateway stops: what comes ends at once
}

// add reports whether the request may begin: it is added in any case.
func (l *live) add(x *Exchange) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.liveIndex = len(l.items)
	l.items = append(l.items, x)
	if !x.branch {
		l.n++
	}
	return !l.over
}

// remove moves the last item to the place of x.
func (l *live) remove(x *Exchange) {
	l.mu.Lock()
	last := len(l.items) - 1
	l.items[x.liveIndex], l.items[last].liveIndex = l.items[last], x.liveIndex
	l.items = slices.Delete(l.items, last, last+1)
	if !x.branch {
		l.n--
	}
	l.mu.Unlock()
}

// count adds to the number of requests one that consists of branches, or takes it away.
func (l *live) count(by int) {
	l.mu.Lock()
	l.n += by
	l.mu.Unlock()
}

// close returns the requests under way at this moment. No other may begin.
func (l *live) close() []*Exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return slices.Clone(l.items)
}

func (l *live) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}
