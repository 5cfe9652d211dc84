package agent

import (
	"encoding/binary"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// simRequest is one client's request. The router tries it on one pair after the other, each time under a new transfer
// id, and gives exactly one answer.
type simRequest struct {
	s        *sim
	number   int
	tokens   int
	hit      int // tokens that decode's cache holds, from the start
	spare    int // blocks behind the last one that is needed
	slack    int // tokens that prefill keeps in front of a window
	attempts []*simAttempt
	answers  int
	burst    bool // decode waits before it reserves, and says so
	probe    bool // sent after the faults to see whether a pair serves
	pair     [2]*simEngine
}

// simAttempt is one dispatch under one transfer id.
type simAttempt struct {
	request *simRequest
	number  int
	id      kvplane.TransferID
	hit     int
	p, d    *simRun
	begun   time.Duration
	over    bool
	decode  *simLeg
	why     string
}

const (
	simTries    = 3
	simDeadline = 12 * time.Second // of one attempt
)

// send begins a request.
func (s *sim) send(q *simRequest) {
	q.s, q.number = s, len(s.requests)+1
	s.requests = append(s.requests, q)
	s.open++
	s.note("request %d of %d tokens, %d cached", q.number, q.tokens, q.hit)
	q.try()
	if !q.probe && s.strike(faultLeave) {
		s.after(s.extent(faultLeave, 150*time.Millisecond), func() {
			if q.answers == 0 {
				s.counts.reach("client left")
				q.answer("left")
			}
		})
	}
}

// drawRequest draws what a client asks.
func (s *sim) drawRequest() *simRequest {
	q := &simRequest{tokens: 1 + s.rng.IntN(24), spare: s.rng.IntN(4) / 3, slack: s.rng.IntN(5)}
	switch s.rng.IntN(6) {
	case 0:
		q.hit = q.tokens
	case 1, 2:
		q.hit = s.rng.IntN(q.tokens + 1)
	}
	return q
}

// answer is the one that the client gets.
func (q *simRequest) answer(what string) {
	s := q.s
	q.answers++
	if q.answers > 1 {
		s.fail("S9", "request %d is answered twice, at last with %s", q.number, what)
	}
	s.note("request %d is answered: %s", q.number, what)
	s.counts.reach("answer: " + what)
	s.open--
	for _, a := range q.attempts {
		a.end("the request is over")
	}
	if q.probe && q.pair[0].shape.odd != q.pair[1].shape.odd {
		s.checkRefused(q, what)
		return
	}
	if q.probe && (what != "ok" || len(q.attempts) > 1) {
		s.fail("L4", "the healthy pair %s and %s does not serve: %s after %d attempts, %s", q.pair[0].name, q.pair[1].name, what, len(q.attempts),
			q.attempts[len(q.attempts)-1].why)
	}
}

// try dispatches the next attempt, or gives up.
func (q *simRequest) try() {
	s := q.s
	if q.answers > 0 {
		return
	}
	if len(q.attempts) == simTries {
		q.answer("failed")
		return
	}
	a := &simAttempt{request: q, number: len(s.attempts) + 1, hit: q.hit, begun: s.now}
	a.p, a.d = q.pick(0, metadata.Prefill), q.pick(1, metadata.Decode)
	a.hit = q.hit / a.d.engine.shape.logical * a.d.engine.shape.logical / (4 * s.model.kernel) * (4 * s.model.kernel)
	if q.hit == q.tokens {
		a.hit = q.hit
	}
	binary.BigEndian.PutUint64(a.id[:], s.rng.Uint64())
	binary.BigEndian.PutUint64(a.id[8:], uint64(a.number))
	s.attempts, q.attempts = append(s.attempts, a), append(q.attempts, a)
	s.byID[a.id] = a
	s.note("attempt %d (%s) of request %d from %s to %s", a.number, a.id, q.number, a.p.inc.ID(), a.d.inc.ID())
	a.dispatch(a.p, false)
	a.dispatch(a.d, false)
	if s.strike(faultAgain) {
		run := a.d
		if s.dice[faultAgain].IntN(2) == 0 {
			run = a.p
		}
		s.after(s.extent(faultAgain, 2*time.Second), func() { a.dispatch(run, true) })
	}
	if s.strike(faultWrong) {
		e := s.engines[s.dice[faultWrong].IntN(len(s.engines))]
		s.after(s.extent(faultWrong, 50*time.Millisecond), func() {
			if e.role == metadata.Decode {
				a.dispatch(e.current(), true)
			}
		})
	}
	s.after(simDeadline, func() { a.lose("deadline") })
}

// ticket is the gateway's, where it gives any.
func (a *simAttempt) ticket() (t [16]byte) {
	if a.request.s.tickets {
		t[0] = byte(a.number)
	}
	return t
}

// pick chooses an engine's generation, as far as the router knows.
func (q *simRequest) pick(side int, role metadata.Role) *simRun {
	s := q.s
	e := q.pair[side]
	if e == nil {
		var of []*simEngine
		for _, x := range s.engines {
			if x.role == role {
				of = append(of, x)
			}
		}
		e = of[s.rng.IntN(len(of))]
	}
	r := e.current()
	if len(e.runs) > 1 && s.strike(faultForget) {
		r = e.runs[len(e.runs)-2]
	}
	return r
}

// dispatch brings one leg to an engine.
func (a *simAttempt) dispatch(r *simRun, again bool) {
	s := a.request.s
	s.after(50*time.Microsecond+s.some(time.Millisecond), func() {
		switch {
		case r.dead:
			if !again {
				a.lose("an engine is down")
			}
		case a.over && !again:
		case s.strike(faultRefuse) && !again:
			a.lose("an engine refuses")
		case r.seen[a.id]: // an id serves once
			s.counts.reach("dispatched twice: refused")
		default:
			r.seen[a.id] = true
			l := r.leg(a, again)
			if r.engine.role == metadata.Decode {
				if !again {
					a.decode = l
				}
				if a.request.burst {
					s.after(s.extent(faultBurst, 3*time.Second), l.reserve)
					l.queue()
					return
				}
				if s.strike(faultQueue) {
					s.after(s.extent(faultQueue, 2*s.times.Lease), l.reserve)
					if s.dice[faultQueue].IntN(2) == 0 {
						l.queue()
					}
					return
				}
			}
			l.reserve()
		}
	})
}

// end cancels both legs. A cancel may be lost, as the engine's control route may not be reachable.
func (a *simAttempt) end(why string) {
	if a.over {
		return
	}
	a.over, a.why = true, why
	s := a.request.s
	s.note("attempt %d is over: %s", a.number, why)
	for _, r := range []*simRun{a.p, a.d} {
		if s.strike(faultCancelLost) {
			continue
		}
		s.after(50*time.Microsecond+s.some(2*time.Millisecond), func() {
			r.seen[a.id] = true // its dispatch may come yet
			if l := r.legs[a.id]; l != nil {
				l.stop("the router cancels")
			}
		})
	}
}

// lose gives an attempt up and tries the next.
func (a *simAttempt) lose(why string) {
	if a.over {
		return
	}
	a.end(why)
	a.request.s.after(a.request.s.some(5*time.Millisecond), a.request.try)
}

// The engines' answers.

func (a *simAttempt) prefilled(*simLeg) {}

func (a *simAttempt) stopped(l *simLeg) {
	if !l.again {
		a.answered(func() { a.lose("prefill has stopped") })
	}
}

func (a *simAttempt) failed(l *simLeg) {
	if !l.again {
		a.answered(func() { a.lose("decode: " + l.reason.String()) })
	}
}

func (a *simAttempt) decoded(l *simLeg) {
	if l.again {
		return
	}
	a.answered(func() {
		if !a.over && a.request.answers == 0 {
			a.over = true
			a.request.answer("ok")
		}
	})
}

func (a *simAttempt) answered(do func()) {
	s := a.request.s
	s.after(20*time.Microsecond+s.some(300*time.Microsecond), do)
}
