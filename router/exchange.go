package router

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"pdrouter/policies"
)

// exchange owns the dispatch of one request: it turns what its legs, its client and its timers do into events, and
// actions into I/O. All of it runs on the goroutine that serves the client's connection, but that each leg has one of its own
// until its answer begins: so nobody waits for a leg whose end would come too late.
type exchange struct {
	legs
	lease  Lease  // of the caller's limits; nil if there are none
	place  *gate  // that it has a place of, until its end
	tenant string // whose the response is, if an engine keeps it
	kept   string // what was put about that, as long as others may not know
	reply  reply
	fan    *fan // whose branch it is; nil if it is a request of its own
	sum    Summary

	d        dispatch
	acts     []action
	queue    []event       // of the owner's own making, oldest first
	rests    int           // how often it went back to engines that had failed it
	pause    time.Duration // before engines are chosen again; 0 if it need not wait
	due      time.Time     // the deadline of what comes before the gate
	noOnward string        // why there is none, though the policy wants it
	onward   *onward       // what another engine would need to go on with the stream; nil if none may
	last     reason        // of the last attempt that failed

	counted bool // the engine has counted the tokens of the answer
	pieces  int  // events with data that were relayed, a token each or more

	choice policies.Choice
	look   look

	timer *time.Timer
	watch goneWatch

	prev, next *exchange // in the router's live list

	mu        sync.Mutex
	cur       *attempt   // written by the owner alone, which reads it without mu
	mails     []mail     // none of them of an attempt before cur
	interrupt *leash     // of what the owner is blocked on; nil if it is not
	heir      *afterlife // has cur from now on; nil if nobody has
	over      bool       // there is an outcome
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
	meta   string // what the engine says of a body of bytes
	body   []byte
	stream *stream // else: a stream
}

// newExchange begins to serve a request that was admitted.
func (r *Router) newExchange(q *admitted) *exchange {
	s, m, b, arrived := q.s, q.m, q.b, q.arrived
	x := &exchange{d: newDispatch(m.conn, s.cfg.Limits.Attempts), wake: make(chan struct{}, 1)}
	x.legs = legs{r: r, s: s, m: m, b: b, path: q.enginePath(), traceparent: q.trace}
	x.place, q.place = q.place, nil
	q.x, x.lease, x.fan = x, q.lease, q.fan
	x.mails, x.queue, x.acts = x.mailRoom[:0], x.queueRoom[:0], x.actRoom[:0]
	x.sum = Summary{
		RequestID: q.id, Subject: q.who.Subject, Model: m.name, Route: q.route.String(), Stream: b.stream, Removed: b.removed, Arrived: arrived,
	}
	x.sum.Phases.Admit = time.Since(arrived)
	limit := s.cfg.Timeouts.Request
	if !b.stream { // its first token comes with its last
		limit = s.cfg.Timeouts.Answer
	}
	x.due = arrived.Add(limit)
	m.retries.request(arrived, q.again)
	if q.queued > 0 {
		x.sum.Phases.Admit, x.sum.Phases.Queue = q.checked, q.queued
	}
	x.timer = time.AfterFunc(time.Until(x.due), func() {
		x.post(mail{e: event{kind: evDeadline, why: whyDeadline}})
	})
	x.look.r, x.look.s, x.look.m, x.look.pin, x.look.adapter = r, s, m, q.pin, q.adapter
	x.tenant = q.who.Tenant
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

// post hands an event to the owner, and takes it out of what it is blocked on unless that is a leg's, which can wait.
func (x *exchange) post(m mail) {
	x.mu.Lock()
	if x.heir != nil && m.a == x.heir.a {
		x.heir.told <- m.e
		x.mu.Unlock()
		return
	}
	if x.over || m.a != nil && m.a != x.cur { // what an earlier attempt still says must not end this one
		x.mu.Unlock()
		return
	}
	x.mails = append(x.mails, m)
	interrupt := x.interrupt
	x.mu.Unlock()
	if interrupt != nil && m.a == nil {
		interrupt.cut(errInterrupted)
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

// took reads what there is behind a leg's event, and returns what that makes of it.
func (x *exchange) took(m mail) event {
	switch m.e.kind {
	case evPrefillUsable:
		x.sum.Phases.Prefill = m.at.Sub(x.sum.Arrived)
	case evDecodeFirst, evDecodeWhole:
		return x.begin(m)
	}
	return m.e
}

// begin takes over decode's answer from its leg.
func (x *exchange) begin(m mail) event {
	x.b.stream = m.e.kind == evDecodeFirst // where the request does not tell
	x.sum.Stream = x.b.stream
	if s := m.a.stream; s != nil {
		if m.a.stream = nil; !s.open() {
			m.a.decode.end()
			x.r.bad(m.a.decode.engine, signAnswer, m.at)
			return decodeEvent(vGarbage, true)
		}
		x.reply.stream = s
	}
	x.sum.Phases.FirstToken = m.at.Sub(x.sum.Arrived)
	x.remember(m.a)
	return m.e
}

// dropOld keeps the events that belong to no attempt.
func dropOld(mails []mail) []mail {
	return slices.DeleteFunc(mails, func(m mail) bool { return m.a != nil })
}

// block notes how to interrupt the owner, unless there is mail.
func (x *exchange) block(interrupt *leash) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.mails) > 0 {
		return false
	}
	x.interrupt = interrupt
	return true
}

// unblock reports whether there is mail.
func (x *exchange) unblock() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.interrupt = nil
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
		switch a := x.cur; {
		case ok:
			return x.took(m)
		case x.d.state == stWaiting:
			x.rest()
		case a != nil && a.parked:
			x.park(a)
		default:
			<-x.wake
		}
	}
}

// plan chooses the engines of the next attempt.
func (x *exchange) plan() event {
	retry, waited := x.sum.Attempts > 0, x.pause > 0
	x.pause = 0
	if retry && !waited && !x.m.retries.take(time.Now()) {
		return event{kind: evPlannedNone, why: whyRetryBudget}
	}
	choice, fleet := x.choose(x.not)
	if choice.Decode < 0 && len(x.not) > 0 {
		var e event
		var late bool
		if choice, fleet, e, late = x.back(waited); late {
			return e
		}
	}
	x.sum.Phases.Plan = time.Since(x.sum.Arrived)
	x.sum.Reason, x.sum.Prefill, x.sum.Decode = string(choice.Reason), "", ""
	if choice.Decode < 0 {
		switch choice.Reason {
		case policies.NoPair:
			return event{kind: evPlannedNone, why: whyNoPair}
		case policies.NoPrefill:
			return event{kind: evPlannedNone, why: whyNoPrefill}
		}
		return event{kind: evPlannedNone, why: whyNoEngine}
	}
	a := &attempt{split: choice.Split, unstreamed: !x.b.stream, reads: x.m.conn.mode() == inTurn}
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
		a.couple = x.m.couple(choice.Prefill, choice.Decode)
		a.couple.wanted.add(x.sum.Arrived)
	}
	return event{kind: evPlannedPair}
}

// choose chooses engines that the request may be given to, but for those.
func (x *exchange) choose(not tried) (policies.Choice, policies.Fleet) {
	x.look.now, x.look.not, x.look.anyway = time.Now(), not, false
	q := policies.Request{Model: x.m.name, PromptTokens: x.b.promptTokens(), Unsplittable: policies.Reason(x.b.unsplittable)}
	if _, alone := x.m.conn.(none); alone {
		q.Unsplittable = policies.Aggregated
	}
	c, f := x.look.choose(x.m.insist(q))
	return x.m.insisted(c), f
}

// pair readies the attempt's pair, or has the owner park for it.
func (x *exchange) pair(a *attempt) {
	switch x.m.conn.(type) {
	case push:
		if x.r.pairs.Ready(a.runs()) && x.coordinated(a) {
			x.queue = append(x.queue, event{kind: evPaired})
			return
		}
		a.parked = true
		return
	case sglang:
		a.h.meeting = a.prefill.engine.bootstrap.draw()
	case plane:
		var ok bool
		if a.h.prefill, a.h.decode, ok = x.r.incarnations(a.prefill.engine, a.decode.engine); !ok {
			x.queue = append(x.queue, event{kind: evPairFailed, why: whyNoPair})
			return
		}
		a.h.validMS = x.s.cfg.Timeouts.Request.Milliseconds()
		x.r.ticket(&a.h, a.prefill.engine, a.decode.engine, contextOf(x.m.name, x.sum.Subject, x.b.cacheSalt()))
		x.r.books.open(a.h.transfer, a.prefill.engine.name, a.decode.engine.name, x.r.size(a.decode.engine))
		a.landed = x.r.landed(a.h.transfer, a.decode.engine)
		if !x.r.pairs.Ready(a.runs()) {
			a.parked = true
			return
		}
	}
	x.queue = append(x.queue, event{kind: evPaired})
}

func (x *exchange) coordinated(a *attempt) bool {
	if a.prefill.engine.publishes {
		return true
	}
	a.h.coord = a.prefill.engine.coord.Load()
	return a.h.coord != nil
}

// park waits for the pair's handshake, unless there is mail, and posts what came of it.
func (x *exchange) park(a *attempt) {
	waiting := new(leash)
	x.r.held.add(waiting)
	defer waiting.remove()
	if !x.block(waiting) {
		return
	}
	defer x.unblock()
	a.parked = false
	timeout, stop := context.WithTimeout(waiting, x.s.cfg.Timeouts.Pair)
	defer stop()
	err := x.r.pairs.Wait(timeout, a.runs())
	if err == nil && x.coordinated(a) {
		x.post(mail{a: a, e: event{kind: evPaired}})
		return
	}
	if !errors.Is(err, context.Canceled) {
		x.r.log.Warn("pair", "prefill", a.prefill.engine.name, "decode", a.decode.engine.name, "err", err)
	}
	x.post(mail{a: a, e: event{kind: evPairFailed, why: whyPairFailed}})
}
