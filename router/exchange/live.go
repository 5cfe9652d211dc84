package exchange

import (
	"slices"
	"sync"

	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

// Count is how many requests are under way, as clients count them.
func (all *Exchanges) Count() int { return all.live.len() }

// Composed notes that one request more, or one less, is under way that consists of branches.
func (all *Exchanges) Composed(by int) { all.live.count(by) }

// ShutDown has every request under way end, and every one that begins later: the gateway stops.
func (all *Exchanges) ShutDown() {
	for _, x := range all.live.close() {
		x.shutDown()
	}
}

func (x *Exchange) shutDown() {
	x.deliver(envelope{e: dispatch.Event{Kind: dispatch.EvShutdown, Why: reason.Shutdown}})
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
