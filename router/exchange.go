package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies"
)

// exchange owns the dispatch of one request: it turns what its legs, its client and its timers do into events, and
// actions into I/O. All of it runs on the goroutine that serves the client's connection, but for a prefill leg
// that is out together with decode's, which has one of its own.
type exchange struct {
	r           *Router
	m           *model
	b           *body
	path        string // of the engine's route; the route table's, never the client's bytes
	lease       Lease  // of the caller's limits; nil if there are none
	traceparent string
	reply       reply
	sum         Summary

	d     dispatch
	acts  []action
	queue []event // of the owner's own making, oldest first
	not   tried
	stale mail     // what came of the owner's own leg while mail was waiting
	held  bool     // stale is set
	told  *attempt // whose prefill leg has answered, to the owner's knowledge

	counted bool // the engine has counted the tokens of the answer
	pieces  int  // events with data that were relayed, a token each or more

	choice      policies.Choice
	prefillRoom [4]policies.Engine
	decodeRoom  [4]policies.Engine

	timer *time.Timer
	watch goneWatch

	prev, next *exchange // in the router's live list

	mu        sync.Mutex
	cur       *attempt // written by the owner alone, which reads it without mu
	mails     []mail   // none of them of an attempt before cur
	interrupt *leash   // of what the owner is blocked on; nil if it is not
	patient   bool     // the decode leg must reach its first token, whether the client waits or not
	gated     bool     // decode's answer is on its way to the client
	over      bool     // there is an outcome
	wake      chan struct{}

	mailRoom  [4]mail
	queueRoom [2]event
	actRoom   [8]action
}

// mail is an event from another goroutine. a is the attempt that it belongs to, nil if it belongs to the request.
type mail struct {
	a  *attempt
	e  event
	at time.Time
}

// reply is what the handler sends.
type reply struct {
	err    *httpError // an error of the router's own
	status int        // else: an engine's
	ctype  string
	body   []byte
	stream *stream // else: a stream
}

// newExchange admits a request that has arrived at the given time.
func (r *Router) newExchange(m *model, b *body, path string, arrived time.Time) *exchange {
	x := &exchange{r: r, m: m, b: b, path: path, d: newDispatch(m.conn, r.cfg.Limits.Attempts), wake: make(chan struct{}, 1)}
	x.mails, x.queue, x.acts = x.mailRoom[:0], x.queueRoom[:0], x.actRoom[:0]
	x.sum = Summary{Model: m.name, Route: path, Stream: b.stream, Removed: b.removed, Arrived: arrived}
	x.sum.Phases.Admit = time.Since(arrived)
	limit := r.cfg.Timeouts.Request
	if !b.stream { // its first token comes with its last
		limit = r.cfg.Timeouts.Answer
	}
	x.timer = time.AfterFunc(limit-x.sum.Phases.Admit, func() {
		x.post(mail{e: event{kind: evDeadline, why: whyDeadline}})
	})
	r.live.add(x)
	return x
}

// watchClient has the request end when its client leaves.
func (x *exchange) watchClient(conn net.Conn) {
	x.watch, _ = x.r.gone.Watch(conn, func() { x.post(mail{e: event{kind: evClientLeft, why: whyClientLeft}}) })
}

// run brings the request to its outcome, or to the point where its stream can be relayed.
func (x *exchange) run() {
	defer func() {
		if v := recover(); v != nil {
			x.panicked(v)
		}
	}()
	x.step(event{kind: evStart})
	for x.d.state != stDone && x.d.state != stRelaying {
		x.step(x.nextEvent())
	}
}

// panicked ends a request whose handling panicked; others go on.
func (x *exchange) panicked(v any) {
	x.r.log.Error("panic in a request", "request_id", x.sum.RequestID, "panic", v, "stack", stack())
	x.step(event{kind: evPanic, why: whyPanic})
}

func (x *exchange) step(e event) {
	x.acts = x.d.Step(e, x.acts[:0])
	for _, a := range x.acts {
		x.perform(a, e)
	}
}

// post hands an event to the owner, and takes it out of what it is blocked on unless that may go on.
func (x *exchange) post(m mail) {
	x.mu.Lock()
	if x.over || m.a != nil && m.a != x.cur { // what an earlier attempt still says must not end this one
		x.mu.Unlock()
		return
	}
	x.mails = append(x.mails, m)
	interrupt := x.interrupt
	hurry := m.e.kind == evClientLeft && x.patient && !x.b.stream
	a := x.cur
	switch {
	case m.e.kind == evPrefillUsable, m.e.kind.ofPrefill() && x.gated, m.e.kind == evClientLeft && x.patient:
		interrupt = nil
	}
	x.mu.Unlock()
	if interrupt != nil {
		interrupt.cut(errInterrupted)
	}
	if hurry {
		a.hurry()
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// mailLocked takes the oldest event.
func (x *exchange) mailLocked() (mail, bool) {
	if len(x.mails) == 0 {
		return mail{}, false
	}
	m := x.mails[0]
	x.mails = append(x.mails[:0], x.mails[1:]...)
	return m, true
}

// took notes that the prefill leg's answer may be read from now.
func (x *exchange) took(m mail) {
	if m.e.kind == evPrefillUsable {
		x.told = m.a
		x.sum.Phases.Prefill = m.at.Sub(x.sum.Arrived)
	}
}

// dropOld keeps the events that belong to no attempt.
func dropOld(mails []mail) []mail {
	return slices.DeleteFunc(mails, func(m mail) bool { return m.a != nil })
}

// block notes how to interrupt the owner, unless there is mail.
func (x *exchange) block(interrupt *leash, patient bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.mails) > 0 {
		return false
	}
	x.interrupt, x.patient = interrupt, patient
	return true
}

// unblock reports whether there is mail.
func (x *exchange) unblock() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.interrupt, x.patient = nil, false
	return len(x.mails) > 0
}

// nextEvent waits for the next event before the gate.
func (x *exchange) nextEvent() event {
	if len(x.queue) > 0 {
		e := x.queue[0]
		x.queue = append(x.queue[:0], x.queue[1:]...)
		return e
	}
	for {
		x.mu.Lock()
		m, ok := x.mailLocked()
		x.mu.Unlock()
		if ok {
			x.took(m)
			return m.e
		}
		if x.held {
			x.held = false
			x.took(x.stale)
			return x.stale.e
		}
		a := x.cur
		own := mail{a: a}
		switch {
		case a != nil && a.parked:
			own.e, ok = x.park(a)
		case a != nil && a.toPrefill != nil:
			if ok = x.block(&a.prefill.leash, false); ok {
				req := a.toPrefill
				a.toPrefill = nil
				own = x.askPrefill(a, req)
			}
		case a != nil && a.toDecode:
			if ok = x.block(&a.decode.leash, a.split && x.d.mode == inTurn); ok {
				a.toDecode = false
				own.e = x.askDecode(a)
			}
		default:
			<-x.wake
			continue
		}
		if !ok {
			continue
		}
		if !x.unblock() {
			x.took(own)
			return own.e
		}
		x.stale, x.held = own, true
	}
}

// plan chooses the engines of the next attempt.
func (x *exchange) plan() event {
	choice, fleet := x.choose()
	if choice.Decode < 0 && len(x.not) > 0 {
		// There is nobody else: a decode engine that failed once may serve the second time.
		x.not = slices.DeleteFunc(x.not, func(e *engine) bool { return slices.Contains(x.m.decode, e) })
		choice, fleet = x.choose()
	}
	x.sum.Phases.Plan = time.Since(x.sum.Arrived)
	x.sum.Reason, x.sum.Prefill, x.sum.Decode = string(choice.Reason), "", ""
	if choice.Decode < 0 {
		if choice.Reason == policies.NoPair {
			return event{kind: evPlannedNone, why: whyNoPair}
		}
		return event{kind: evPlannedNone, why: whyNoEngine}
	}
	a := &attempt{split: choice.Split, unstreamed: !x.b.stream}
	a.h.shape = x.b.shape
	a.h.draw()
	x.choice, x.sum.Phases.Prefill = choice, 0
	x.mu.Lock()
	x.cur, x.mails = a, dropOld(x.mails)
	x.mu.Unlock()
	x.sum.Attempts++
	x.sum.Decode = fleet.Decode[choice.Decode].Name
	a.decode.join(&x.r.held, x.m.decode[choice.Decode])
	if !choice.Split {
		return event{kind: evPlannedAlone}
	}
	x.sum.Prefill = fleet.Prefill[choice.Prefill].Name
	x.sum.TransferID = a.h.transfer
	a.prefill.engine = x.m.prefill[choice.Prefill]
	if len(x.m.couples) > 0 {
		x.m.couple(choice.Prefill, choice.Decode).wanted.add(x.sum.Arrived)
	}
	return event{kind: evPlannedPair}
}

// choose asks the planner over a snapshot of the fleet.
func (x *exchange) choose() (policies.Choice, policies.Fleet) {
	m := x.m
	f := policies.Fleet{
		Prefill: snapshot(x.prefillRoom[:0], m.prefill, x.not),
		Decode:  snapshot(x.decodeRoom[:0], m.decode, x.not),
	}
	q := policies.Request{Model: m.name, PromptTokens: x.b.promptTokens(), Unsplittable: policies.Reason(x.b.unsplittable)}
	switch m.conn.(type) {
	case none:
		q.Unsplittable = policies.Aggregated
	default:
		f.Pairable = x.pairable
	}
	return x.r.parts.Planner.Choose(q, f, policies.Draw{Turn: m.turn.Add(1), Random: rand.Uint64()}), f
}

func (x *exchange) pairable(p, d int) bool {
	c := x.m.couple(p, d)
	return x.r.agree(c) == nil && (c.prefill.side == nil || !x.r.doubtful(c))
}

// pair readies the attempt's pair, or has the owner park for it.
func (x *exchange) pair(a *attempt) {
	switch x.m.conn.(type) {
	case push:
		if x.r.pairs.Ready(x.runs(a)) && x.coordinated(a) {
			x.queue = append(x.queue, event{kind: evPaired})
			return
		}
		a.parked = true
		return
	case plane:
		var ok bool
		if a.h.prefill, a.h.decode, ok = x.r.incarnations(a.prefill.engine, a.decode.engine); !ok {
			x.queue = append(x.queue, event{kind: evPairFailed, why: whyNoPair})
			return
		}
		a.h.validMS = x.r.cfg.Timeouts.Request.Milliseconds()
		x.r.ticket(&a.h, a.prefill.engine, a.decode.engine, contextOf(x.m.name, x.sum.Subject, x.b.salt))
		x.r.books.open(a.h.transfer, a.prefill.engine.name, a.decode.engine.name, x.r.size(a.decode.engine))
		a.landed = x.r.landed(a.h.transfer, a.decode.engine)
		if !x.r.pairs.Ready(x.runs(a)) {
			a.parked = true
			return
		}
	}
	x.queue = append(x.queue, event{kind: evPaired})
}

func (x *exchange) runs(a *attempt) metadata.Pair {
	if a.prefill.engine.publishes {
		return metadata.Pair{Prefill: a.h.prefill, Decode: a.h.decode}
	}
	return metadata.Pair{Prefill: a.prefill.engine.incarnation(), Decode: a.decode.engine.incarnation()}
}

func (x *exchange) coordinated(a *attempt) bool {
	if a.prefill.engine.publishes {
		return true
	}
	a.h.coord = a.prefill.engine.coord.Load()
	return a.h.coord != nil
}

// park waits for the pair's handshake. It reports false if there was mail first.
func (x *exchange) park(a *attempt) (event, bool) {
	waiting := new(leash)
	x.r.held.add(waiting)
	defer waiting.remove()
	if !x.block(waiting, false) {
		return event{}, false
	}
	a.parked = false
	timeout, stop := context.WithTimeout(waiting, x.r.cfg.Timeouts.Pair)
	defer stop()
	err := x.r.pairs.Wait(timeout, x.runs(a))
	if err == nil && x.coordinated(a) {
		return event{kind: evPaired}, true
	}
	if !errors.Is(err, context.Canceled) {
		x.r.log.Warn("pair", "prefill", a.prefill.engine.name, "decode", a.decode.engine.name, "err", err)
	}
	return event{kind: evPairFailed, why: whyPairFailed}, true
}
