package router

import (
	"context"
	"sync"
	"time"
)

// attempt is one dispatch of a request: a pair of engines, or one engine alone, and ids of its own.
type attempt struct {
	h       handoff
	split   bool
	prefill call
	decode  call

	parked    bool    // waits for the pair; owner only
	toPrefill *letter // the prefill leg is to be asked by the owner itself; owner only
	toDecode  bool    // the decode leg is to be asked; owner only

	prefillTimer *time.Timer // the prefill leg's time; set before the leg is asked

	unstreamed bool        // decode's first byte comes with its last, and says nothing of the transfer; set once
	landed     func() bool // whether the transfer is over, as far as is known; nil if nobody tells; set once

	mu       sync.Mutex
	due      time.Time   // of decode's first token; zero until prefill has answered
	transfer *time.Timer // ends the decode leg when it is due; nil until then
	decoded  bool        // decode's first token is here, or its leg is over
	orphan   bool        // the prefill leg runs on for decode's blocks alone
	failed   bool        // the prefill leg is over, and has not written them
}

// release has the prefill leg run on with nobody waiting, so that decode's blocks come free. It reports false if the
// leg is over and they do not.
func (a *attempt) release() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.orphan = true
	return !a.failed
}

// prefilled notes how the prefill leg has ended. It reports whether decode's blocks stay held, and nobody sees to it.
func (a *attempt) prefilled(e event) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = e.kind != evPrefillUsable && e.kind != evPrefillRejected // what prefill rejects, decode rejects as well
	return a.failed && a.orphan
}

// expect gives decode d to come up with its first token. It may be called twice; the first call counts.
//
// An answer that is not streamed may take as long as it is generated, so there it is the transfer itself that is due,
// if there is a way to know of it.
func (a *attempt) expect(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.due.IsZero() || a.decoded {
		return
	}
	a.due = time.Now().Add(d)
	switch {
	case !a.unstreamed:
		a.transfer = a.decode.later(d, errTransferLate)
	case a.landed != nil:
		a.transfer = time.AfterFunc(d, func() {
			if !a.landed() {
				a.decode.cut(errTransferLate)
			}
		})
	}
}

// hurry ends the decode leg when its first token would be due, whatever is known: nobody waits for the answer.
func (a *attempt) hurry() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.transfer == nil && !a.decoded {
		a.transfer = a.decode.later(time.Until(a.due), errTransferLate)
	}
}

// arrived ends the wait for decode's first token.
func (a *attempt) arrived() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.decoded = true
	if a.transfer != nil {
		a.transfer.Stop()
	}
}

// unsent reports that no byte of the decode leg has left, though it was to be asked: something came first.
func (a *attempt) unsent() bool {
	return a.toDecode || a.decode.unsent()
}

// askPrefill asks the prefill leg and returns what came of it. If both legs are out at once it runs on a goroutine of
// its own and may outlive the exchange: what it needs of the request is in its arguments.
func (x *exchange) askPrefill(a *attempt, req *letter) mail {
	r, conn := x.r, x.m.conn
	l := &a.prefill
	defer l.end()
	v := l.send(&req.upstreamRequest, r.cfg.Limits.Answer)
	req.free()
	if v == vUsable {
		v = l.whole(r.cfg.Limits.Answer)
	}
	a.prefillTimer.Stop()
	r.noteHealth(l, v)
	e := prefillEvent(v)
	if v == vUsable {
		e = event{kind: evPrefillUnusable, why: whyNoParams}
		if l.ans.kv != nil {
			e.kind = conn.accept(&a.h, l.ans.kv)
		}
		switch e.kind {
		case evPrefillUsable:
			e.why = whyNone
			if conn.mode() == together {
				a.expect(r.cfg.Timeouts.Transfer)
			} else {
				r.sawRun(l.engine, l.ans.kv)
			}
		case evPrefillMoved:
			e.why = whyMoved
			if c, ok := parseCoordinates(l.ans.kv); ok {
				r.moved(l.engine, a.h.coord, c)
			}
		}
	}
	if a.prefilled(e) {
		r.strand(&a.h, l.engine, a.decode.engine, "decode waits for a prefill leg that has failed")
	}
	return mail{a: a, e: e, at: time.Now()}
}

// prefillEvent says what a prefill engine's behaviour means for the dispatch.
func prefillEvent(v verdict) event {
	switch v {
	case vRefused:
		return event{kind: evPrefillRefused, why: whyRefused}
	case vRejected:
		return event{kind: evPrefillRejected, why: whyPrefillRejected}
	case vBroken:
		return event{kind: evPrefillBroken, why: whyPrefillFailed}
	case vGarbage:
		return event{kind: evPrefillUnusable, why: whyBadUpstream}
	case vLate:
		return event{kind: evPrefillLate, why: whyPrefillTimeout}
	}
	return event{kind: evPrefillLost, why: whyPrefillFailed}
}

// decodeEvent says what a decode engine's behaviour means for the dispatch.
func decodeEvent(v verdict, stream bool) event {
	switch v {
	case vUsable:
		if stream {
			return event{kind: evDecodeFirst}
		}
		return event{kind: evDecodeWhole}
	case vRefused:
		return event{kind: evDecodeRefused, why: whyRefused}
	case vRejected:
		return event{kind: evDecodeRejected, why: whyDecodeRejected}
	case vBroken:
		return event{kind: evDecodeBroken, why: whyDecodeFailed}
	case vGarbage:
		return event{kind: evDecodeBroken, why: whyBadUpstream}
	case vLate:
		return event{kind: evDecodeLate, why: whyTransferTimeout}
	}
	return event{kind: evDecodeLost, why: whyDecodeFailed}
}

// repeatPrefill asks the attempt's prefill engine again under the same id, so that it writes what decode waits for
// and decode's blocks come free. The whole body is needed: a shorter prompt would not match.
func (x *exchange) repeatPrefill(a *attempt) {
	r, e := x.r, a.prefill.engine
	req := x.prefillRequest(a)
	limit := r.cfg.Limits.Answer
	ok := r.background(func(ctx context.Context) {
		for wait := 100 * time.Millisecond; ; wait *= 2 {
			var l call
			l.open(ctx, e)
			v := l.send(&req.upstreamRequest, limit)
			l.end()
			if v == vUsable || v == vRejected {
				return
			}
			if e.down.Load() {
				break
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				continue
			}
			break
		}
		r.strand(&a.h, e, a.decode.engine, "decode waits for a prefill engine that cannot be asked again")
	})
	if !ok {
		x.strand(a, "decode waits for prefill, and too many legs run on")
	}
}

// drainDecode has a decode engine take what prefill holds for nobody, by a leg of one token under the same id.
func (x *exchange) drainDecode(a *attempt) {
	r := x.r
	h := a.h
	h.kv = a.prefill.ans.kv
	if c, ok := parseCoordinates(h.kv); ok {
		h.coord = c
	}
	to := a.decode.engine
	for _, e := range x.m.decode {
		if !e.down.Load() && !x.not.has(e) && (e != a.decode.engine || len(x.m.decode) == 1) {
			to = e
			break
		}
	}
	var l call
	l.engine = to
	req := &upstreamRequest{
		Path:   x.path,
		Header: l.header(nil, h.request, x.traceparent, false),
		Body:   x.b.prefill(nil, x.m.conn.decodeParams(nil, &h)),
		Once:   true,
	}
	limit := r.cfg.Limits.Answer
	ok := r.background(func(ctx context.Context) {
		l.open(ctx, to)
		defer l.end()
		v := l.send(req, limit)
		if v == vUsable {
			v = l.whole(limit)
		}
		if v != vUsable {
			r.strand(&h, a.prefill.engine, to, "prefill holds what decode did not take")
		}
	})
	if !ok {
		x.strand(a, "prefill holds what nobody takes, and too many legs run on")
	}
}

// strand notes that the request has left KV behind.
func (x *exchange) strand(a *attempt, why string) {
	x.sum.Stranded = true
	x.r.strand(&a.h, a.prefill.engine, a.decode.engine, why)
}

// strand counts KV that an engine holds for nobody, until a lease ends or for good.
func (r *Router) strand(h *handoff, prefill, decode *engine, why string) {
	r.stranded.Add(1)
	r.log.Warn("blocks stay held", "transfer_id", h.transfer, "prefill", prefill.name, "decode", decode.name, "why", why)
}

// cancelTransfer tells both engines that nobody wants the transfer any more.
func (x *exchange) cancelTransfer(a *attempt, why reason) {
	x.r.tellCancelled(a.h.transfer, why, a.prefill.engine, a.decode.engine)
}
