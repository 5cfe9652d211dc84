// Package kvwatch tells whether the KV of one transfer has come where no engine says so: a prefill engine of push writes, decode answers
// only when its answer is complete, so both are polled. It decides nothing: its caller learns that the KV has not come. The exchange uses it for a request, the handshake for a probe.
package kvwatch

import (
	"context"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/reason"
)

// Pause is the time between two checks of prefill, for a transfer that may take so long.
func Pause(transfer time.Duration) time.Duration { return min(250*time.Millisecond, transfer/8) }

// LoadApart is the time between two samples of an engine's load that must agree.
const LoadApart = time.Second

// LoadSeldom is the longest time between two samples.
const LoadSeldom = 10 * time.Second

// Watch watches a transfer by push after prefill's answer, where decode's answer shows nothing until it is complete: one goroutine polls
// both engines. If it is wrong about a failure, another attempt is still right, as the client has nothing of the answer yet.
type Watch struct {
	Monitor  *monitor.Monitor
	Decode   *leg.Leg
	Prefill  *fleet.Engine
	Endpoint *connector.PrefillEndpoint // of the run of prefill that decode registered with
	Due      time.Time                  // when the KV should have come
	Transfer time.Duration              // how long before that prefill has answered
	Lost     func(reason.Reason)        // called if it has not come
	Asking   time.Duration              // how long prefill may take to answer whether it lives

	expired int // leases of prefill that had ended when it had answered; below 0 if it does not say
	over    monitor.Refusing
	pause   time.Duration // between checks of prefill
}

// Run polls until ctx ends, the transfer is lost, or no further poll can show that it is.
func (u *Watch) Run(ctx context.Context) {
	due := u.Due
	u.pause = Pause(u.Transfer)
	apart := min(LoadApart, max(u.Transfer/4, 2*monitor.LoadFresh))
	last := due.Add(-apart)                                              // when the sample before the one at due is taken
	next, again, idle := time.Now().Truncate(apart).Add(apart), apart, 0 // of the samples of decode; two in a row must show that it does nothing for this transfer
	u.expired = u.leasesEnded(ctx, leasesFresh)
	silent, supplied := false, false // decode does not report its load; it has all KV of the transfer
	at, passed := 0, false           // samples in a row that showed all requests there running; whether last has passed
	for !silent || !supplied {
		wait := LoadSeldom
		if !silent {
			wait = time.Until(next)
		}
		if !supplied {
			wait = min(wait, u.pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if !supplied {
			if why := u.prefillOver(ctx); why != reason.None {
				u.reportLost(why)
				return
			}
		}
		now := time.Now()
		if !now.Before(due) {
			u.pause = max(u.pause, LoadApart)
			u.Decode.SetKV(leg.KVOverdue)
		}
		if silent || now.Before(next) {
			continue
		}
		l, t := u.Monitor.Load(ctx, u.Decode.Engine)
		switch {
		case t == monitor.LoadKnown && (l.Running == 0 || !supplied && (onlyOthers(u.Decode.Engine, l) || !now.Before(due) && u.allExpired(ctx, l))):
			idle++
			next = now.Add(apart)
		default:
			silent = t == monitor.LoadNotReported && !now.Before(due)
			if at++; t != monitor.LoadKnown || !allAtWork(u.Decode.Engine, l) {
				at = 0
			}
			if at >= 2 { // twice, as a sample may count a request that has ended since in place of this one
				supplied = true
				u.Decode.SetKV(leg.KVSupplied)
			}
			idle, again = 0, min(2*again, LoadSeldom)
			if !passed && !now.Before(last) {
				passed, again = true, apart
			}
			if next = now.Add(again); now.Before(last) && next.After(last) {
				next = last
			}
		}
		if idle >= 2 && !now.Before(due) {
			u.reportLost(reason.TransferTimeout)
			return
		}
	}
}

// reportLost reports that the transfer has not come, unless decode's leg is over.
func (u *Watch) reportLost(why reason.Reason) {
	if u.Decode.SetKV(leg.KVOverdue) {
		u.Lost(why)
	}
}

// allAtWork reports whether the engine runs all requests of this gateway: none waits for its blocks. A sample may be older than a request:
// then fewer run than the gateway has there.
func allAtWork(e *fleet.Engine, l monitor.Load) bool {
	return l.Waiting == 0 && l.Running >= int(e.InFlight.Load())
}

// onlyOthers reports whether the engine runs only requests that are known to have their KV: all other requests of this gateway wait.
func onlyOthers(e *fleet.Engine, l monitor.Load) bool {
	n := int(e.Streaming.Load() + e.Supplied.Load())
	return l.Running <= n && l.Waiting >= int(e.InFlight.Load())-n
}

// leasesFresh is how old what is known of the leases that have ended may be when a transfer begins to be looked after.
const leasesFresh = 5 * time.Second

// leasesEnded is how many leases of prefill have ended, as it says; below 0 if it does not.
func (u *Watch) leasesEnded(ctx context.Context, fresh time.Duration) int {
	e := u.Prefill
	if l, ok := u.Monitor.LatestLoad(e, fresh); ok {
		return l.Expired
	}
	if l, answer := u.Monitor.Load(ctx, e); answer == monitor.LoadKnown {
		return l.Expired
	}
	return -1
}

// allExpired reports whether all requests of decode's that are overdue have lost their KV: as many leases of prefill have ended since, and
// as many requests wait.
func (u *Watch) allExpired(ctx context.Context, l monitor.Load) bool {
	n := int(u.Decode.Engine.Overdue.Load())
	return u.expired >= 0 && l.Waiting >= n && u.leasesEnded(ctx, monitor.LoadFresh)-u.expired >= n
}

// prefillOver says why prefill cannot write any more: another run of it has answered, or its process takes no connections.
func (u *Watch) prefillOver(ctx context.Context) reason.Reason {
	e := u.Prefill
	if c := e.Endpoint.Load(); c != nil && c.EngineID != u.Endpoint.EngineID {
		return reason.EngineRestarted
	}
	if e.Failures.Load() == 0 && !e.Down.Load() {
		u.over = monitor.Refusing{}
		return reason.None
	}
	ctx, cancel := context.WithTimeout(ctx, u.Asking)
	defer cancel()
	if u.over.Gone(ctx, e) {
		return reason.PrefillFailed
	}
	return reason.None
}
