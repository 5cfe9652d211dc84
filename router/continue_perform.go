package router

import (
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// broke tells the dispatch that the stream has failed, and what that leaves to be done.
func (s *stream) broke() {
	x, o, e := s.x, s.x.onward, dispatch.Event{Kind: dispatch.EvStreamLost, Why: s.wrong}
	switch {
	case o == nil:
		e.Kind, x.sum.NotContinued = dispatch.EvStreamCut, x.noOnward
	case !o.able(), s.wrong == reason.AnswerTooLarge:
		e.Kind, x.sum.NotContinued = dispatch.EvStreamCut, "unsupported"
	case o.finished || o.max >= 0 && o.nSent >= o.max:
		e.Kind = dispatch.EvStreamUnended
	}
	x.stepOnward(e)
}

// stepOnward has the dispatch take an event behind the gate, and then what doing so has shown at once.
func (x *exchange) stepOnward(e dispatch.Event) {
	for x.step(e); len(x.queue) > 0; x.step(e) {
		e = x.queue[0]
		x.queue = append(x.queue[:0], x.queue[1:]...)
	}
}

// planOnward chooses an engine to go on with the stream that the attempt has failed at.
func (x *exchange) planOnward(failed *attempt, why reason.Reason) dispatch.Event {
	x.noteFailure(failed, &failed.decode, why)
	x.r.log.Warn("a stream is to go on from another engine", "request_id", x.sum.RequestID, "engine", failed.decode.engine.name,
		"reason", why.String())
	x.not = x.not.add(failed.decode.engine, failed.decode.rest)
	if !x.m.retries.Retry(time.Now()) {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.RetryBudget}
	}
	x.look.now, x.look.not, x.look.anyway, x.look.busy = time.Now(), x.not, false, true
	choice, _ := x.look.choose(policies.Request{Model: x.m.name, Unsplittable: "continued"})
	if choice.Decode < 0 {
		return dispatch.Event{Kind: dispatch.EvPlannedNone, Why: reason.NoEngine}
	}
	a := &attempt{}
	a.h.Shape = openai.ShapeCompletions
	a.h.Draw()
	x.mu.Lock()
	x.cur, x.mails = a, dropOld(x.mails)
	x.mu.Unlock()
	x.sum.Attempts++
	a.decode.join(&x.r.cancels, x.m.decode[choice.Decode])
	return dispatch.Event{Kind: dispatch.EvPlannedAlone}
}

// askOnward has the attempt's engine go on from the tokens that the client has, on a goroutine of its own.
func (x *exchange) askOnward(a *attempt) {
	o := x.onward
	o.late, o.nLate = nil, 0
	m := x.r.newLetter(&a.decode, pathCompletions, a.h.Request, x.forwarded, true).hold(x.b)
	m.body = o.body(m.body[:0], &m.Gaps, x.b.CacheSalt())
	m.Body = m.body
	a.asked = true
	a.transfer = a.decode.later(x.s.cfg.Timeouts.Request, errLegLate)
	x.r.ended.Add(1)
	x.r.goroutines.Go(func() { x.askDecode(a, m) })
}

// awaitOnward waits for what the engine that was asked says, for the client, or for as long as the stream may be silent.
func (s *stream) awaitOnward() {
	var quiet <-chan time.Time
	if every := *s.x.s.cfg.Timeouts.KeepAlive; every > 0 && s.conn != nil {
		t := time.NewTimer(every)
		defer t.Stop()
		quiet = t.C
	}
	for {
		if s.mail(); s.x.d.State != dispatch.StContinuing {
			return
		}
		select {
		case <-s.x.wake:
		case <-quiet:
			s.keepAlive()
			return
		}
	}
}

// join takes over the stream of the engine that is to go on, if the client can have what it says.
func (s *stream) join(m mail) dispatch.Event {
	next := m.a.stream
	m.a.stream = nil
	s.a, s.wrong, s.silent, s.woken = m.a, reason.None, false, time.Time{}
	s.room, next.room = next.room, s.room
	s.frames, next.frames = next.frames, nil
	next.free()
	s.x.onward.joined = true
	if !s.relay(next.begins) {
		m.a.decode.end()
		s.x.r.bad(m.a.decode.engine, health.AnswerFailed, m.at)
		return decodeEvent(vGarbage, true)
	}
	for s.next() {
	}
	return m.e
}
