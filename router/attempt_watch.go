package router

import (
	"context"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

// watchEvery is how often it is looked whether a transfer that nobody tells of can still come about.
const watchEvery = 250 * time.Millisecond

// loadApart is the time between two looks at an engine's load that are to show the same.
const loadApart = time.Second

// loadSeldom is the longest between two looks.
const loadSeldom = 10 * time.Second

// unseen is a transfer by push of which decode's answer says nothing until it is whole, behind prefill's answer: what is seen of
// its engines, as one goroutine looks now and then. Whatever it takes for a failure, the client has nothing of the answer yet, so
// that another attempt is right.
type unseen struct {
	r        *Router
	a        *attempt
	transfer time.Duration // that the KV has to come
	expired  int           // leases of prefill that had ended when it had answered; below 0 if it does not say
	prefill  shut
	pause    time.Duration // between looks at prefill
}

// transferLost notes that what prefill was to write for the attempt has not come. Decode's leg is open still.
func (x *exchange) transferLost(a *attempt, why reason.Reason) {
	if why == reason.TransferTimeout && a.couple != nil {
		x.r.sawTransfer(a.couple, a.runs(), false)
	}
	x.post(mail{a: a, e: dispatch.Event{Kind: dispatch.EvTransferLost, Why: why}, at: time.Now()})
}

// watchTransfer has somebody look for as long as decode's leg is not over, if that is to last.
func (x *exchange) watchTransfer(a *attempt) {
	if !x.m.conn.Traits().Writes || !a.unstreamed || a.h.Endpoint == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.hurried || a.watcher != nil {
		return
	}
	first := min(watchEvery, x.s.cfg.Timeouts.Transfer/8)
	a.watcher = time.AfterFunc(first, func() {
		a.mu.Lock()
		if a.over || a.hurried {
			a.mu.Unlock()
			return
		}
		ctx, cancel := context.WithCancel(x.r.legs)
		a.unwatch = cancel
		x.r.ended.Add(1) // decode's leg counts still
		a.mu.Unlock()
		defer x.r.ended.Done()
		defer cancel()
		x.r.survive("a look at a transfer", func() { (&unseen{r: x.r, a: a, transfer: x.s.cfg.Timeouts.Transfer, pause: first}).run(ctx) })
	})
}

// run looks until ctx ends, or the attempt is seen to have failed, or nothing can show that any more.
func (u *unseen) run(ctx context.Context) {
	u.a.mu.Lock()
	due := u.a.due
	u.a.mu.Unlock()
	apart := min(loadApart, max(u.transfer/4, 2*loadFresh))
	last := due.Add(-apart)                                              // when the look before the one at due is made
	next, again, idle := time.Now().Truncate(apart).Add(apart), apart, 0 // of the looks at decode; two in a row must show it with nothing of this to do
	u.expired = u.leasesEnded(ctx, leasesFresh)
	mute, fed := false, false // decode does not tell what it has in hand; it has had all that it needs from prefill
	at, passed := 0, false    // looks in a row that have shown all requests there at work; whether last has passed
	for !mute || !fed {
		wait := loadSeldom
		if !mute {
			wait = time.Until(next)
		}
		if !fed {
			wait = min(wait, u.pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if !fed {
			if why := u.prefillOver(ctx); why != reason.None {
				u.a.lapsed(why)
				return
			}
		}
		now := time.Now()
		if !now.Before(due) {
			u.pause = max(u.pause, loadApart)
			u.a.isOverdue()
		}
		if mute || now.Before(next) {
			continue
		}
		l, t := u.r.seeLoad(ctx, u.a.decode.engine)
		switch {
		case t == tells && (l.running == 0 || !fed && (u.a.decode.engine.onlyOthers(l) || !now.Before(due) && u.allExpired(ctx, l))):
			idle++
			next = now.Add(apart)
		default:
			mute = t == tellsNot && !now.Before(due)
			if at++; t != tells || !u.a.decode.engine.allAtWork(l) {
				at = 0
			}
			if at >= 2 { // twice, as a look may still count a request that has ended in place of this one
				fed = true
				u.a.supply()
			}
			idle, again = 0, min(2*again, loadSeldom)
			if !passed && !now.Before(last) {
				passed, again = true, apart
			}
			if next = now.Add(again); now.Before(last) && next.After(last) {
				next = last
			}
		}
		if idle >= 2 && !now.Before(due) {
			u.a.lapsed(reason.TransferTimeout)
			return
		}
	}
}

// allAtWork reports whether all requests of this gateway there are at work, as the engine says: none waits for its blocks. A look may be
// older than a request: then fewer are at work than the gateway has there.
func (e *engine) allAtWork(l load) bool {
	return l.waiting == 0 && l.running >= int(e.inFlight.Load())
}

// onlyOthers reports whether what the engine has at work, as it says, can only be requests that are known to have their KV: all others
// that it was given by this gateway wait.
func (e *engine) onlyOthers(l load) bool {
	n := int(e.streaming.Load() + e.supplied.Load())
	return l.running <= n && l.waiting >= int(e.inFlight.Load())-n
}

// leasesFresh is how old what is known of the leases that have ended may be when a transfer begins to be looked after.
const leasesFresh = 5 * time.Second

// leasesEnded is how many leases of prefill have ended, as it says; below 0 if it does not.
func (u *unseen) leasesEnded(ctx context.Context, fresh time.Duration) int {
	e := u.a.prefill.engine
	if l, ok := u.r.loads.of(e).latest(fresh); ok {
		return l.expired
	}
	if l, ok := u.r.loadOf(ctx, e); ok {
		return l.expired
	}
	return -1
}

// allExpired reports whether all requests of decode's that are overdue have lost their KV: as many leases of prefill have ended since, and
// as many requests wait.
func (u *unseen) allExpired(ctx context.Context, l load) bool {
	n := int(u.a.decode.engine.overdue.Load())
	return u.expired >= 0 && l.waiting >= n && u.leasesEnded(ctx, loadFresh)-u.expired >= n
}

// prefillOver says why prefill cannot write any more: another run of it has answered, or its process takes no connections.
func (u *unseen) prefillOver(ctx context.Context) reason.Reason {
	e := u.a.prefill.engine
	if c := e.coord.Load(); c != nil && c.EngineID != u.a.h.Endpoint.EngineID {
		return reason.EngineRestarted
	}
	if e.failures.Load() == 0 && !e.down.Load() {
		u.prefill = shut{}
		return reason.None
	}
	ctx, cancel := context.WithTimeout(ctx, u.r.now().cfg.Timeouts.SideChannelAnswer())
	defer cancel()
	if u.prefill.gone(ctx, e) {
		return reason.PrefillFailed
	}
	return reason.None
}
