package agent

import (
	"slices"
	"sync"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
)

// collected is what an agent keeps for Collect.
type collected struct {
	mu             sync.Mutex
	next           sched.RankReport
	notified       bool                 // and not collected since
	pendingChanged bool                 // the owner's: what waits for handshakes may have changed
	pending        []kvplane.TransferID // the owner's scratch
}

// Do carries out what the scheduler orders: first what is queued, then expectations, offers and abandonments. It does
// not block, and after Close it does nothing.
func (a *Agent) Do(o sched.Orders) {
	if o.Empty() {
		return
	}
	a.owner.engineCall(func() { a.owner.order(&o) })
}

func (o *owner) order(x *sched.Orders) {
	for i := range x.Queue {
		o.queue(x.Queue[i].ID, x.Queue[i].Peer)
	}
	for i := range x.Expect {
		o.expect(&x.Expect[i])
	}
	for i := range x.Offer {
		o.offer(&x.Offer[i])
	}
	for i := range x.Abandon {
		o.abandon(x.Abandon[i].ID, x.Abandon[i].Why)
	}
}

// Collect returns what the rank has to say since the last Collect: reports if Config.Report is nil, and the
// handshakes that are pending. It does not block. Config.Notify is called when there is something: again, if there are more reports than one
// RankReport can hold.
func (a *Agent) Collect() sched.RankReport {
	c := &a.owner.collected
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.next
	n := sched.Fit(out.Reports)
	rest := out.Reports[n:]
	out.Reports = out.Reports[:n:n]
	out.Engine, out.Rank = a.record.Incarnation, a.record.Rank
	if len(out.Reports) > 0 {
		out.Seq++
	}
	out.Pending = append([]kvplane.TransferID(nil), c.next.Pending...)
	c.next = sched.RankReport{Seq: out.Seq, Reports: rest, Handshakes: out.Handshakes, Pending: c.next.Pending}
	c.notified = false
	if len(rest) > 0 {
		a.owner.enqueue(func() { a.owner.keep(func(*sched.RankReport) {}) })
	}
	return out
}

// keep adds to what waits for Collect and wakes the engine, once until it collects.
func (o *owner) keep(add func(*sched.RankReport)) {
	c := &o.collected
	c.mu.Lock()
	add(&c.next)
	wake := !c.notified
	c.notified = true
	c.mu.Unlock()
	if wake && o.cfg.Notify != nil {
		o.cfg.Notify()
	}
}

func (o *owner) keepReport(r kvplane.Report) {
	o.keep(func(next *sched.RankReport) { next.Reports = append(next.Reports, r) })
}

// keepPending notes which transfers wait for a handshake, and notifies the engine if that has changed.
func (o *owner) keepPending() {
	o.collected.pendingChanged = false
	handshakes, pending := 0, o.collected.pending[:0]
	for _, e := range o.engines {
		if e.peers == nil {
			handshakes++
			pending = append(append(pending, e.expects...), e.offers...)
		}
	}
	slices.SortFunc(pending, kvplane.TransferID.Compare)
	pending = pending[:min(len(pending), sched.MaxPending)]
	o.collected.pending = pending
	c := &o.collected
	c.mu.Lock()
	same := c.next.Handshakes == handshakes && slices.Equal(c.next.Pending, pending)
	c.mu.Unlock()
	if !same {
		o.keep(func(next *sched.RankReport) {
			next.Handshakes, next.Pending = handshakes, append(next.Pending[:0], pending...)
		})
	}
}
