package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
	"pdrouter/router/upstream"
)

// plan chooses the engines of the next attempt.
func (x *exchange) plan() dispatch.Event {
	retry, waited := x.sum.Attempts > 0, x.pause > 0
	x.pause = 0
	choice, fleet := x.choose(x.not)
	switch {
	case choice.Decode < 0 && len(x.not) > 0:
		var e dispatch.Event
		var late bool
		if choice, fleet, e, late = x.back(waited); late {
			if e.Kind == dispatch.EvPlannedLater && !waited && !x.m.retries.Retry(time.Now()) {
				return x.spent()
			}
			return e
		}
	case retry && !waited && x.doubles(choice) && !x.m.retries.Retry(time.Now()):
		if choice, fleet = x.choose(x.not.with(x.m.prefill)); choice.Decode < 0 || x.doubles(choice) {
			return x.spent()
		}
	}
	x.sum.Phases.Plan = x.look.now.Sub(x.sum.Arrived)
	x.sum.Reason, x.sum.Prefill, x.sum.Decode = string(choice.Reason), "", ""
	if choice.Decode < 0 {
		return x.nobody(choice)
	}
	x.until = time.Time{}
	a := &attempt{split: choice.Split, unstreamed: !x.b.Stream, reads: x.m.conn.Traits().Mode == dispatch.InTurn}
	a.h.Shape = x.b.Shape
	a.h.Draw()
	x.choice, x.sum.Phases.Prefill = choice, 0
	x.attempt(a)
	x.sum.Decode = fleet.Decode[choice.Decode].Name
	toPrefill, toDecode := x.look.reads(choice)
	a.prefill.unread.Store(int64(toPrefill))
	a.decode.unread.Store(int64(toDecode))
	a.decode.join(&x.r.cancels, x.m.decode[choice.Decode])
	if !choice.Split {
		return dispatch.Event{Kind: dispatch.EvPlannedAlone}
	}
	x.sum.Prefill = fleet.Prefill[choice.Prefill].Name
	x.sum.TransferID = a.h.Transfer
	a.prefill.engine = x.m.prefill[choice.Prefill]
	if x.m.conn.Traits().Writes {
		a.lost = func(why reason.Reason) { x.transferLost(a, why) }
	}
	if len(x.m.couples) > 0 {
		a.couple = x.m.couple(choice.Prefill, choice.Decode)
		a.couple.wanted.Add(x.sum.Arrived)
	}
	return dispatch.Event{Kind: dispatch.EvPlannedPair}
}

// doubles reports whether these engines do work that an engine has begun before for the request. Decode alone in place of a prefill
// engine that has failed does not.
func (x *exchange) doubles(c policies.Choice) bool {
	switch {
	case x.failed.Unbegun():
		return false
	case x.failed.OfPrefill(), x.failed == dispatch.EvTransferLost:
		return c.Split
	}
	return true
}

// spent ends a request that would need a retry beyond the budget. The client is told when engines that refused it may be asked.
func (x *exchange) spent() dispatch.Event {
	x.pause = x.not.soonest()
	return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.RetryBudget}
}

// nobody says what becomes of a request that no engine can take now: it waits where one may come back.
func (x *exchange) nobody(c policies.Choice) dispatch.Event {
	why, missing := reason.NoEngine, decodeRole
	switch c.Reason {
	case policies.NoPair:
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.NoPair}
	case policies.NoPrefill:
		why, missing = reason.NoPrefill, prefillRole
	}
	pause, comes := x.look.comes(missing)
	if x.pause = pause; !comes {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: why}
	}
	now := time.Now()
	if x.until.IsZero() {
		x.until = now.Add(x.s.cfg.Timeouts.Queue)
		if x.sum.Attempts > 0 && x.doubles(c) && !x.m.retries.Retry(now) {
			return x.spent()
		}
	}
	left := min(x.until.Sub(now), x.due.Sub(now))
	if left <= 0 {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.QueueTimeout}
	}
	x.pause = min(spread(max(pause, backoff(x.rests+1, rand.Uint64()))), left)
	return dispatch.Event{Kind: dispatch.EvPlannedLater}
}

// choose chooses engines that the request may be given to, but for those.
func (x *exchange) choose(not tried) (policies.Choice, policies.Fleet) {
	if x.bare {
		if c, f := x.chooseFrom(not.with(x.m.prefill), false); c.Decode >= 0 {
			c.Reason = noHandOff
			return c, f
		}
	}
	return x.chooseFrom(not, false)
}

// chooseFrom is choose, with busy also of engines that have asked for no requests now, if no others are left.
func (x *exchange) chooseFrom(not tried, busy bool) (policies.Choice, policies.Fleet) {
	x.look.Begin(not, busy)
	q := policies.Request{Model: x.m.name, PromptTokens: x.b.PromptTokens(), Unsplittable: policies.Reason(x.b.Unsplittable)}
	x.look.ask(x.b)
	return x.look.Choose(q)
}

// pair readies the attempt's pair, or has the owner wait for it.
func (x *exchange) pair(a *attempt) {
	t := x.m.conn.Traits()
	if t.Meets {
		a.h.Bootstrap = a.prefill.engine.bootstrap.Draw()
	}
	if t.Publishes {
		var ok bool
		if a.h.Prefill, a.h.Decode, ok = x.s.fleet.incarnations(a.prefill.engine, a.decode.engine); !ok {
			a.prefill.err = errNoRecords
			x.found(dispatch.Event{Kind: dispatch.EvPairFailed, Why: reason.NoPair})
			return
		}
		a.h.ValidMS = x.s.cfg.Timeouts.Request.Milliseconds()
		x.r.ticket(x.s.parts.Tickets, &a.h, a.prefill.engine, a.decode.engine, contextOf(x.m.name, x.sum.Subject, x.b.CacheSalt()))
		x.r.report.Transfers.Open(a.h.Transfer, a.prefill.engine.name, a.decode.engine.name, x.s.fleet.size(a.decode.engine))
		a.landed = x.r.landed(a.h.Transfer, a.decode.engine)
	}
	// Legs that follow each other need no handshake before prefill is asked.
	if t.Handshakes && t.Mode == dispatch.Together && (!x.r.pairs.Ready(a.runs()) || !x.coordinated(a)) {
		a.parked = true
		return
	}
	x.found(dispatch.Event{Kind: dispatch.EvPaired})
}

func (x *exchange) coordinated(a *attempt) bool {
	if a.prefill.engine.publishes {
		return true
	}
	a.h.Endpoint = a.prefill.engine.coord.Load()
	return a.h.Endpoint != nil
}

// awaitPair waits for the pair's handshake, unless there is an event.
func (x *exchange) awaitPair(a *attempt) {
	waiting := new(upstream.Canceler)
	x.r.cancels.Add(waiting)
	defer waiting.Remove()
	if !x.block(waiting) {
		return
	}
	defer x.unblock()
	a.parked = false
	timeout, stop := context.WithTimeout(waiting, x.s.cfg.Timeouts.Pair)
	defer stop()
	err := x.r.pairs.Wait(timeout, a.runs())
	if err == nil && x.coordinated(a) {
		x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPaired}})
		return
	}
	if !errors.Is(err, context.Canceled) {
		x.r.log.Warn("pair", "prefill", a.prefill.engine.name, "decode", a.decode.engine.name, "err", err)
	}
	a.prefill.err = err
	x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPairFailed, Why: reason.PairFailed}})
}

// landed returns what says whether a transfer to the engine is over, as far as is known: it is taken for over if the
// engine's events cannot be relied on, because its stream was not open all the time from now on.
func (r *Router) landed(id string, decode *engine) func() bool {
	if decode.control == "" {
		return nil
	}
	edition := decode.streams.Load()
	if !decode.followed.Load() {
		return nil
	}
	return func() bool {
		return r.report.Transfers.Over(id) || !decode.followed.Load() || decode.streams.Load() != edition
	}
}
