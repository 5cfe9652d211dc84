package exchange

import (
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
)

// Waits before an engine that has failed is asked again.
const (
	backoffFirst = 50 * time.Millisecond
	backoffMost  = 2 * time.Second
)

// backoff is the wait before the n-th time, from 1, that a request goes back to engines that have failed it: twice as long each
// time, between half of it and all of it, so that requests that failed together do not come back together.
func backoff(n int, random uint64) time.Duration {
	d := backoffMost
	if n < 7 {
		d = min(backoffFirst<<(n-1), backoffMost)
	}
	return d/2 + time.Duration(random%uint64(d/2+1))
}

// spread returns up to a quarter more than d, so that requests that wait for one engine do not all come to it at once: the first to be
// refused again has the others wait on.
func spread(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// selectFailed selects among engines that have failed the request, as there are no others: a decode engine that failed once may serve
// the second time, and where decode may not serve alone so may a prefill engine. Engines that want a long rest are left alone:
// if there are only they the client is told when to come back, and does not wait in its place.
func (x *Exchange) selectFailed(waited bool) (policies.Choice, policies.Fleet, dispatch.Event, bool) {
	long, first := x.excluded.LongRests()
	choice, f := x.selectEngines(append(x.excluded.Without(x.m.Decode), long...))
	if choice.Decode < 0 {
		choice, f = x.selectEngines(long)
	}
	if choice.Decode < 0 { // they are asked when the time is over that they asked for
		choice, f = x.selectWithout(long, true)
	}
	if choice.Decode < 0 && len(long) > 0 {
		x.pause = first
		return choice, f, dispatch.Event{Kind: dispatch.EvPlannedNone, Why: x.last}, true
	}
	e, late := x.later(choice, waited)
	return choice, f, e, late
}

// later has the request wait before it goes back to engines that have failed it; waited says that it has. It gives up at once
// if there would be no time left, and where the engines have gone on refusing others for longer than a request waits in the queue.
func (x *Exchange) later(choice policies.Choice, waited bool) (dispatch.Event, bool) {
	if choice.Decode < 0 {
		return dispatch.Event{}, false
	}
	back := [2]*fleet.Engine{x.m.Decode[choice.Decode]}
	if choice.Prefill >= 0 {
		back[1] = x.m.Prefill[choice.Prefill]
	}
	now := time.Now()
	pause := x.excluded.Rest(back[:]...)
	for _, e := range back {
		if e != nil {
			pause = max(pause, e.Health.RetryAfter(now))
		}
	}
	if !waited {
		pause = max(pause, backoff(int(x.waits)+1, rand.Uint64()))
		x.waitsUntil = now.Add(x.s.Config.Timeouts.Queue)
	}
	if pause <= 0 {
		x.excluded = x.excluded.Without(back[:])
		return dispatch.Event{}, false
	}
	x.pause = pause
	if x.due.Sub(now) <= pause || waited && now.After(x.waitsUntil) {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: x.last}, true
	}
	x.pause = spread(pause)
	return dispatch.Event{Kind: dispatch.EvPlannedLater}, true
}

// pauseForEngines waits for as long as the engines are given, unless there is an event.
func (x *Exchange) pauseForEngines() {
	t := time.NewTimer(x.pause)
	defer t.Stop()
	for x.armInterrupt(nil) {
		select {
		case <-t.C:
			x.deliver(envelope{e: dispatch.Event{Kind: dispatch.EvWaited}})
			return
		case <-x.wake:
		}
	}
}
