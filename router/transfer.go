package router

import (
	"context"
	"errors"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/reason"
)

// watchEvery is how often it is looked whether a transfer that nobody tells of can still come about.
const watchEvery = 250 * time.Millisecond

// loadApart is the time between two looks at an engine's load that are to show the same.
const loadApart = time.Second

// loadSeldom is the longest between two looks.
const loadSeldom = 10 * time.Second

// transferWatch watches a transfer by push of which decode's answer says nothing until it is whole, after prefill's answer: one goroutine
// looks at both engines now and then. Whatever it takes for a failure, the client has nothing of the answer yet, so that another
// attempt is right.
type transferWatch struct {
	monitor  *monitor.Monitor
	decode   *leg.Leg
	prefill  *fleet.Engine
	endpoint *connector.PrefillEndpoint // of the run of prefill that decode registered with
	due      time.Time                  // when the KV should have come
	transfer time.Duration              // how long before that prefill has answered
	lost     func(reason.Reason)        // is told that it has not come
	expired  int                        // leases of prefill that had ended when it had answered; below 0 if it does not say
	over     shut
	pause    time.Duration // between looks at prefill
	asking   time.Duration // that prefill has to answer whether it lives
}

// transferLost notes that what prefill was to write for the attempt has not come. Decode's leg is open still.
func (x *exchange) transferLost(a *attempt, why reason.Reason) {
	x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvTransferLost, Why: why}, at: time.Now()})
}

// expect has decode's first token be due. It may be called twice; the first call counts.
//
// An answer that is not streamed may take as long as it is generated, so there it is the transfer itself that is due,
// if there is a way to know of it.
func (x *exchange) expect(a *attempt) {
	if !a.due.IsZero() || a.decode.State().Over() {
		return
	}
	limit := x.s.cfg.Timeouts.Transfer
	a.due = time.Now().Add(limit)
	switch {
	case a.unstreamed && a.hurried:
		x.checkIn(a, min(limit, leftFor))
	case !a.unstreamed && a.onTransferLost != nil:
		a.transferTimer = time.AfterFunc(limit, func() {
			if a.decode.SetKV(leg.KVOverdue) {
				a.onTransferLost(reason.TransferTimeout)
			}
		})
	case !a.unstreamed:
		a.transferTimer = a.decode.CancelAfter(limit, leg.ErrTransferLate)
	case a.landed != nil:
		a.transferTimer = time.AfterFunc(limit, func() {
			if !a.landed() {
				a.decode.Cancel(leg.ErrTransferLate)
			}
		})
	}
}

// watchLater has the transfer be watched if decode's leg is not over soon, and nothing else tells of the transfer.
func (x *exchange) watchLater(a *attempt) {
	if x.m.Connector.Traits().Writes && a.unstreamed && a.h.Endpoint != nil && a.watchTimer == nil {
		a.watchTimer = x.postAfter(x.watchEvery(), a, dispatch.EvWatchDue)
	}
}

// watchEvery is the time between two looks at prefill.
func (x *exchange) watchEvery() time.Duration { return min(watchEvery, x.s.cfg.Timeouts.Transfer/8) }

// watchTransfer watches the transfer until decode's leg is over.
func (x *exchange) watchTransfer(a *attempt) {
	w := &transferWatch{
		monitor: x.r.monitor, decode: &a.decode, prefill: a.prefill.Engine, endpoint: a.h.Endpoint, due: a.due, transfer: x.s.cfg.Timeouts.Transfer,
		lost: a.onTransferLost, pause: x.watchEvery(), asking: x.s.cfg.Timeouts.SideChannelAnswer(),
	}
	x.r.tasks.Go("a look at a transfer", func() { w.run(&a.decode) })
}

// hurry notes that nobody waits for the answer. A decode leg must have begun with what prefill wrote, or else it leaves that
// behind; with its first token it has. One that is not streamed does not tell, so where prefill writes it is given a while
// after prefill's answer, and where it reads itself the time of a transfer.
func (x *exchange) hurry(a *attempt) {
	a.hurried = true
	if !a.unstreamed || a.transferTimer != nil || a.decode.State().Over() || a.due.IsZero() {
		return
	}
	d := time.Until(a.due)
	if !a.reads {
		d = min(leftFor, d)
	}
	x.checkIn(a, d)
}

// checkIn ends the decode leg after d, where prefill writes after a look at whether all that decode has is at work.
func (x *exchange) checkIn(a *attempt, d time.Duration) {
	if a.watchTimer != nil {
		a.watchTimer.Stop()
	}
	if a.onTransferLost == nil {
		a.watchTimer = a.decode.CancelAfter(d, leg.ErrHurried)
		return
	}
	a.watchTimer = x.postAfter(d, a, dispatch.EvCheckDue)
}

// checkDecode ends decode's leg. If decode is not at work on all its requests, and can be asked to free this one's blocks, the leg stays
// open for that.
func (x *exchange) checkDecode(a *attempt) {
	r, e := x.r, a.decode.Engine
	x.r.tasks.Go("a look at a load", func() {
		atWork, said := false, monitor.LoadUnavailable
		defer func() {
			switch {
			case atWork:
				a.decode.Cancel(leg.ErrAtWork)
			case said == monitor.LoadNotReported, untellable(x.s, e) != leakNone:
				a.decode.Cancel(leg.ErrHurried)
			case a.decode.SetKV(leg.KVOverdue):
				a.onTransferLost(reason.ClientLeft)
			}
		}()
		ctx, cancel := context.WithTimeout(r.tasks.Context(), leftFor)
		defer cancel()
		var l monitor.Load
		l, said = r.monitor.Load(ctx, e)
		atWork = said == monitor.LoadKnown && l.Running > 0 && l.Waiting == 0
	})
}

// postAfter sends the attempt's owner an event after d.
func (x *exchange) postAfter(d time.Duration, a *attempt, k dispatch.EventKind) *time.Timer {
	return time.AfterFunc(d, func() { x.enqueue(envelope{a: a, e: dispatch.Event{Kind: k}}) })
}

// worked reports whether a leg that was ended blind had its blocks all the same: decode was at work with all that it had.
func (a *attempt) worked() bool { return errors.Is(a.decode.Cause(), leg.ErrAtWork) }

// run looks until ctx ends, or the attempt is seen to have failed, or nothing can show that any more.
func (u *transferWatch) run(ctx context.Context) {
	due := u.due
	apart := min(loadApart, max(u.transfer/4, 2*monitor.LoadFresh))
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
				u.lapsed(why)
				return
			}
		}
		now := time.Now()
		if !now.Before(due) {
			u.pause = max(u.pause, loadApart)
			u.decode.SetKV(leg.KVOverdue)
		}
		if mute || now.Before(next) {
			continue
		}
		l, t := u.monitor.Load(ctx, u.decode.Engine)
		switch {
		case t == monitor.LoadKnown && (l.Running == 0 || !fed && (onlyOthers(u.decode.Engine, l) || !now.Before(due) && u.allExpired(ctx, l))):
			idle++
			next = now.Add(apart)
		default:
			mute = t == monitor.LoadNotReported && !now.Before(due)
			if at++; t != monitor.LoadKnown || !allAtWork(u.decode.Engine, l) {
				at = 0
			}
			if at >= 2 { // twice, as a look may still count a request that has ended in place of this one
				fed = true
				u.decode.SetKV(leg.KVSupplied)
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
			u.lapsed(reason.TransferTimeout)
			return
		}
	}
}

// lapsed tells that the transfer has not come, unless decode's leg is over.
func (u *transferWatch) lapsed(why reason.Reason) {
	if u.decode.SetKV(leg.KVOverdue) {
		u.lost(why)
	}
}

// allAtWork reports whether all requests of this gateway there are at work, as the engine says: none waits for its blocks. A look may be
// older than a request: then fewer are at work than the gateway has there.
func allAtWork(e *fleet.Engine, l monitor.Load) bool {
	return l.Waiting == 0 && l.Running >= int(e.InFlight.Load())
}

// onlyOthers reports whether what the engine has at work, as it says, can only be requests that are known to have their KV: all others
// that it was given by this gateway wait.
func onlyOthers(e *fleet.Engine, l monitor.Load) bool {
	n := int(e.Streaming.Load() + e.Supplied.Load())
	return l.Running <= n && l.Waiting >= int(e.InFlight.Load())-n
}

// leasesFresh is how old what is known of the leases that have ended may be when a transfer begins to be looked after.
const leasesFresh = 5 * time.Second

// leasesEnded is how many leases of prefill have ended, as it says; below 0 if it does not.
func (u *transferWatch) leasesEnded(ctx context.Context, fresh time.Duration) int {
	e := u.prefill
	if l, ok := u.monitor.LatestLoad(e, fresh); ok {
		return l.Expired
	}
	if l, ok := u.monitor.LoadOf(ctx, e); ok {
		return l.Expired
	}
	return -1
}

// allExpired reports whether all requests of decode's that are overdue have lost their KV: as many leases of prefill have ended since, and
// as many requests wait.
func (u *transferWatch) allExpired(ctx context.Context, l monitor.Load) bool {
	n := int(u.decode.Engine.Overdue.Load())
	return u.expired >= 0 && l.Waiting >= n && u.leasesEnded(ctx, monitor.LoadFresh)-u.expired >= n
}

// prefillOver says why prefill cannot write any more: another run of it has answered, or its process takes no connections.
func (u *transferWatch) prefillOver(ctx context.Context) reason.Reason {
	e := u.prefill
	if c := e.Endpoint.Load(); c != nil && c.EngineID != u.endpoint.EngineID {
		return reason.EngineRestarted
	}
	if e.Failures.Load() == 0 && !e.Down.Load() {
		u.over = shut{}
		return reason.None
	}
	ctx, cancel := context.WithTimeout(ctx, u.asking)
	defer cancel()
	if u.over.gone(ctx, e) {
		return reason.PrefillFailed
	}
	return reason.None
}
