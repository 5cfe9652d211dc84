package router

import (
	"context"
	"time"

	"pdrouter/router/connector"
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
	over     monitor.Refusing
	pause    time.Duration // between looks at prefill
	asking   time.Duration // that prefill has to answer whether it lives
}

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
		u.over = monitor.Refusing{}
		return reason.None
	}
	ctx, cancel := context.WithTimeout(ctx, u.asking)
	defer cancel()
	if u.over.Gone(ctx, e) {
		return reason.PrefillFailed
	}
	return reason.None
}
