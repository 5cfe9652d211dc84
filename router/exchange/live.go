package exchange

import (
	"slices"
	"sync"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/leg"
	"pdrouter/router/reason"
)

// Count is how many requests are under way, as clients count them.
func (all *Exchanges) Count() int { return all.live.len() }

// Composed notes that one request more, or one less, is under way that consists of branches.
func (all *Exchanges) Composed(by int) { all.live.count(by) }

// Live is one request under way, or one choice of a request whose choices are served separately.
type Live struct {
	RequestID string    `json:"request_id"`
	Model     string    `json:"model"`
	Route     string    `json:"route"`
	Subject   string    `json:"subject"` // who called; "" if the router is open
	Stream    bool      `json:"stream"`  // the client asks for one
	Arrived   time.Time `json:"arrived_at"`
	// The engines of the present attempt, "" before they are asked, and the states of their legs (dispatch.LegState).
	Prefill      string `json:"prefill"`
	Decode       string `json:"decode"`
	PrefillState string `json:"prefill_state,omitempty"`
	DecodeState  string `json:"decode_state,omitempty"`
}

// Live returns the requests under way, the oldest first, n at most.
func (all *Exchanges) Live(n int) []Live {
	items := all.live.list()
	slices.SortFunc(items, func(x, y *Exchange) int { return x.Sum.Arrived.Compare(y.Sum.Arrived) })
	out := make([]Live, 0, min(n, len(items)))
	for _, x := range items[:min(n, len(items))] {
		s := &x.Sum // only what does not change after Begin
		one := Live{RequestID: s.RequestID, Model: s.Model, Route: s.Route, Subject: s.Subject, Stream: x.b.Stream, Arrived: s.Arrived}
		if a := x.attempt(); a != nil {
			one.Prefill, one.PrefillState = asked(&a.prefill)
			one.Decode, one.DecodeState = asked(&a.decode)
		}
		out = append(out, one)
	}
	return out
}

// asked returns the engine and the state of a leg, "" before it is asked: its engine may be read from then on.
func asked(l *leg.Leg) (engine, state string) {
	s := l.State()
	if s == dispatch.LegIdle {
		return "", ""
	}
	return l.Engine.Name, s.String()
}

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
	x.liveIndex = int32(len(l.items))
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

// list returns the requests under way, in no order.
func (l *live) list() []*Exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

func (l *live) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}
