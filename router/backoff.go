package router

import (
	"math/rand/v2"
	"slices"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
)

// Waits before an engine that has failed is asked again.
const (
	backoffFirst = 50 * time.Millisecond
	backoffMost  = 2 * time.Second
)

// backoff is the wait before the n-th time, from 1, that a request goes back to engines that have failed it: twice as long each
// time, of which between half and all, so that requests that failed together do not come back together.
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

// tried is the set of engines that a request has failed on.
type tried []failed

// failed is one of them.
type failed struct {
	e     *engine
	until time.Time // it has asked for no more requests before; zero if it has not
}

func (t tried) has(e *engine) bool {
	return slices.ContainsFunc(t, func(f failed) bool { return f.e == e })
}

// add notes that e has failed, and that it wants rest for so long.
func (t tried) add(e *engine, rest time.Duration) tried {
	f := failed{e: e}
	if rest > 0 {
		f.until = time.Now().Add(rest)
	}
	if i := slices.IndexFunc(t, func(f failed) bool { return f.e == e }); i >= 0 {
		t[i] = f
		return t
	}
	return append(t, f)
}

// rest returns how long the engines want to rest still.
func (t tried) rest(engines ...*engine) (d time.Duration) {
	for _, f := range t {
		if !f.until.IsZero() && slices.Contains(engines, f.e) {
			d = max(d, time.Until(f.until))
		}
	}
	return d
}

// resting returns those that want to rest for longer than a request waits for, and how long it is until the first of them
// may be asked.
func (t tried) resting() (long tried, first time.Duration) {
	for _, f := range t {
		if f.until.IsZero() {
			continue
		}
		if d := time.Until(f.until); d > health.LongestRest {
			if long = append(long, f); first == 0 || d < first {
				first = d
			}
		}
	}
	return long, first
}

// soonest returns how long it is until the first of those that asked for no more requests may be asked; 0 if none has.
func (t tried) soonest() (d time.Duration) {
	for _, f := range t {
		if rest := time.Until(f.until); !f.until.IsZero() && rest > 0 && (d == 0 || rest < d) {
			d = rest
		}
	}
	return d
}

// with returns t and those engines.
func (t tried) with(engines []*engine) tried {
	t = slices.Clone(t)
	for _, e := range engines {
		if !t.has(e) {
			t = append(t, failed{e: e})
		}
	}
	return t
}

// without returns t without those engines.
func (t tried) without(engines []*engine) tried {
	return slices.DeleteFunc(slices.Clone(t), func(f failed) bool { return slices.Contains(engines, f.e) })
}

// back chooses among engines that have failed the request, as there are no others: a decode engine that failed once may serve
// the second time, and where decode may not serve alone so may a prefill engine. Engines that want a long rest are left alone:
// if there are only they the client is told when to come back, and does not wait in its place.
func (x *exchange) back(waited bool) (policies.Choice, policies.Fleet, dispatch.Event, bool) {
	long, first := x.not.resting()
	choice, fleet := x.choose(append(x.not.without(x.m.decode), long...))
	if choice.Decode < 0 {
		choice, fleet = x.choose(long)
	}
	if choice.Decode < 0 { // they are asked when the time is over that they asked for
		choice, fleet = x.chooseFrom(long, true)
	}
	if choice.Decode < 0 && len(long) > 0 {
		x.pause = first
		return choice, fleet, dispatch.Event{Kind: dispatch.EvPlannedNone, Why: x.last}, true
	}
	e, late := x.later(choice, waited)
	return choice, fleet, e, late
}

// later has the request wait before it goes back to engines that have failed it; waited says that it has. It gives up at once
// if there would be no time left, and where the engines have gone on refusing others for longer than a request waits in the queue.
func (x *exchange) later(choice policies.Choice, waited bool) (dispatch.Event, bool) {
	if choice.Decode < 0 {
		return dispatch.Event{}, false
	}
	back := [2]*engine{x.m.decode[choice.Decode]}
	if choice.Prefill >= 0 {
		back[1] = x.m.prefill[choice.Prefill]
	}
	now := time.Now()
	pause := x.not.rest(back[:]...)
	for _, e := range back {
		if e != nil {
			pause = max(pause, e.vitals.RetryAfter(now))
		}
	}
	if !waited {
		pause = max(pause, backoff(x.rests+1, rand.Uint64()))
		x.until = now.Add(x.s.cfg.Timeouts.Queue)
	}
	if pause <= 0 {
		x.not = x.not.without(back[:])
		return dispatch.Event{}, false
	}
	x.pause = pause
	if x.due.Sub(now) <= pause || waited && now.After(x.until) {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: x.last}, true
	}
	x.pause = spread(pause)
	return dispatch.Event{Kind: dispatch.EvPlannedLater}, true
}

// pauseForEngines waits for as long as the engines are given, unless there is an event.
func (x *exchange) pauseForEngines() {
	t := time.NewTimer(x.pause)
	defer t.Stop()
	for x.block(nil) {
		select {
		case <-t.C:
			x.enqueue(envelope{e: dispatch.Event{Kind: dispatch.EvWaited}})
			return
		case <-x.wake:
		}
	}
}
