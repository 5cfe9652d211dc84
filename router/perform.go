package router

import (
	"runtime/debug"
	"slices"
	"strconv"
	"time"
)

// perform does one action. Whatever it learns at once goes to the queue.
func (x *exchange) perform(act action, e event) {
	a := x.cur
	switch act.do {
	case doPlan:
		if a != nil {
			a.decode.end()
		}
		x.held = false
		x.queue = append(x.queue, x.plan())
	case doPair:
		x.pair(a)
	case doAskBoth:
		x.startPrefill(a)
		a.toDecode = true
	case doAskPrefill: // decode waits for its answer: the owner has nothing else to do
		a.toPrefill = x.openPrefill(a)
	case doAskDecode:
		a.toDecode = true
		if a.split {
			a.h.kv = a.prefill.ans.kv
			a.expect(x.r.cfg.Timeouts.Transfer)
		}
	case doExpectDecode:
		a.expect(x.r.cfg.Timeouts.Transfer)
	case doBlamePrefill:
		x.blame(a, a.prefill.engine, &a.prefill, act.why)
	case doBlameDecode:
		x.blame(a, a.decode.engine, &a.decode, act.why)
	case doSendStream:
		x.mu.Lock()
		x.gated = true
		x.mu.Unlock()
		x.timer.Stop()
		x.sum.Status = 200
	case doSendWhole:
		x.sendWhole(a)
	case doSendPrefill:
		x.sendRaw(&a.prefill)
	case doSendDecode:
		x.sendRaw(&a.decode)
	case doSendError:
		x.reply = reply{err: x.failure(act.why)}
		x.sum.Status = x.reply.err.Status
	case doCut:
		x.reply.stream.cut(x.failure(act.why))
	case doClosePrefill:
		x.closePrefill(a)
	case doCloseDecode:
		a.decode.end()
	case doFinishDecode:
		x.finishDecode(a)
	case doFinishPrefill:
		if a.unsent() {
			x.closePrefill(a)
			return
		}
		a.prefillTimer.Reset(x.r.cfg.Timeouts.Ending)
		if x.d.decode != legWhole && x.d.decode != legAnswered && !a.release() { // with a token it has its blocks
			x.repeatPrefill(a)
		}
	case doRepeatPrefill:
		if !a.unsent() {
			x.repeatPrefill(a)
		}
	case doDrainDecode:
		x.drainDecode(a)
	case doCancel:
		x.cancelTransfer(a, e.why)
	case doStrand:
		x.strand(a, "an engine has failed, or was started anew")
	case doDone:
		x.done(act)
	case doDrop:
		x.r.log.Warn("event out of place", "request_id", x.sum.RequestID, "event", e.kind.String(), "state", x.d.state.String())
	}
}

// finishDecode ends a decode leg that reads what prefill holds. The owner is here, so the leg is past its first token or
// was interrupted.
func (x *exchange) finishDecode(a *attempt) {
	a.decode.end()
	came := evDecodeLost
	if x.held {
		came = x.stale.e.kind
	}
	switch {
	case came == evDecodeFirst, came == evDecodeWhole:
	case a.unsent(), came == evDecodeRefused, came == evDecodeRejected:
		x.drainDecode(a)
	default:
		x.strand(a, "decode was ended while it may have been reading")
	}
}

// closePrefill ends the prefill leg of an attempt whose decode leg holds nothing.
func (x *exchange) closePrefill(a *attempt) {
	if a.toPrefill != nil { // and it was not even asked
		a.toPrefill.free()
		a.toPrefill = nil
		a.prefillTimer.Stop()
		a.prefill.end()
		return
	}
	// It may have finished meanwhile, for nobody. With a data plane the cancel that was told gives that back.
	if _, cancels := x.m.conn.(plane); !cancels && x.answered(a) {
		x.drainDecode(a)
	}
	a.prefill.cut(errEnded)
}

// answered reports whether the prefill leg's usable answer is here, but not yet taken.
func (x *exchange) answered(a *attempt) bool {
	usable := func(m mail) bool { return m.a == a && m.e.kind == evPrefillUsable }
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.held && usable(x.stale) || slices.ContainsFunc(x.mails, usable)
}

// openPrefill readies the prefill leg and starts its time.
func (x *exchange) openPrefill(a *attempt) *letter {
	x.sum.Phases.Pair = time.Since(x.sum.Arrived)
	a.prefill.join(&x.r.held, a.prefill.engine)
	a.prefillTimer = a.prefill.later(x.r.cfg.Timeouts.Prefill, errLegLate)
	return x.prefillRequest(a)
}

// startPrefill sends the prefill leg on a goroutine of its own.
func (x *exchange) startPrefill(a *attempt) {
	req := x.openPrefill(a)
	x.r.ended.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				x.r.log.Error("panic in a leg", "panic", v, "stack", stack())
				x.post(mail{a: a, e: event{kind: evPrefillLost, why: whyPanic}, at: time.Now()})
			}
		}()
		x.post(x.askPrefill(a, req))
	})
}

func (x *exchange) prefillRequest(a *attempt) *letter {
	m := x.r.newLetter(&a.prefill, x.path, a.h.request, x.traceparent, false)
	m.params = x.m.conn.prefillParams(m.params[:0], &a.h)
	m.body = x.b.prefill(m.body[:0], m.params)
	m.Body = m.body
	return m
}

// askDecode asks the decode leg and reads until its first event, or its whole answer, is here.
func (x *exchange) askDecode(a *attempt) event {
	l := &a.decode
	m := x.r.newLetter(l, x.path, a.h.request, x.traceparent, x.b.stream)
	var kv []byte
	if a.split {
		m.params = x.m.conn.decodeParams(m.params[:0], &a.h)
		kv = m.params
	}
	m.body = x.b.decode(m.body[:0], kv)
	m.Body = m.body
	m.Once = a.split && x.d.mode == inTurn // it uses up what prefill's answer refers to
	v := l.send(&m.upstreamRequest, x.r.cfg.Limits.Answer)
	m.free()
	if v == vUsable {
		if x.b.stream {
			s := newStream(x, a)
			if v = s.first(); v == vUsable {
				x.reply.stream = s
			}
		} else {
			v = l.whole(x.r.cfg.Limits.Answer)
		}
	}
	if v == vUsable && !x.b.stream {
		if body, ok := stripTransferParams(l.body[:0], l.body); ok { // it is never longer, so it may lie in the same place
			l.body = body
		} else {
			v = vGarbage
		}
	}
	a.arrived()
	x.r.noteHealth(l, v)
	if v == vUsable {
		x.sum.Phases.FirstToken = time.Since(x.sum.Arrived)
	}
	if v != vUsable || !x.b.stream {
		l.end()
	}
	return decodeEvent(v, x.b.stream)
}

// blame notes that the attempt failed on an engine, and plans without it.
func (x *exchange) blame(a *attempt, e *engine, l *call, why reason) {
	x.not = append(x.not, e)
	if a.split && (why == whyTransferTimeout || l.ans.errCode == codeTransferFailed) { // either side may be at fault
		x.not = append(x.not, a.prefill.engine)
	}
	x.r.log.Info("attempt failed", "request_id", x.sum.RequestID, "attempt", x.sum.Attempts, "engine", e.name,
		"reason", why.String(), "transfer_id", a.h.transfer, "cause", l.cause())
	if why == whyTransferTimeout {
		x.r.pairs.ForgetPair(x.runs(a))
		x.r.rewarm()
	}
}

// sendWhole makes decode's answer, from which the engines' hand-off was taken out, the client's.
func (x *exchange) sendWhole(a *attempt) {
	l := &a.decode
	x.reply = reply{status: 200, ctype: "application/json", body: l.body}
	x.sum.Status = 200
	x.usage(&l.ans)
	x.cached(a)
}

// sendRaw makes an engine's refusal the client's, status and body as they are.
func (x *exchange) sendRaw(l *call) {
	body, ok := l.body, true
	if len(l.ans.kv) > 0 {
		body, ok = stripTransferParams(nil, l.body)
	}
	if !ok {
		body = nil
	}
	ctype := "application/json"
	if l.ctype != "" {
		ctype = l.ctype
	}
	x.reply = reply{status: l.status, ctype: ctype, body: body}
	x.sum.Status = l.status
}

func (x *exchange) usage(a *answer) {
	if a.hasUsage {
		x.counted = true
		x.sum.PromptTokens, x.sum.OutputTokens = a.promptTokens, a.completionTokens
		x.sum.CachedTokens = a.cachedTokens
	}
}

// cached takes the count of cached tokens from prefill, if it has answered: decode's own counts the hand-off.
func (x *exchange) cached(a *attempt) {
	if a.split && x.told == a {
		x.sum.CachedTokens = a.prefill.ans.cachedTokens
	}
}

// done closes the books of the request. It happens once.
func (x *exchange) done(act action) {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	x.timer.Stop()
	x.watch.Stop()
	if x.cur != nil {
		x.cur.arrived()
		x.cur.decode.end()
	}
	x.r.live.remove(x)
	s := &x.sum
	s.Outcome = act.outcome.public()
	if act.why != whyNone {
		s.Reason = act.why.String()
		if act.outcome == outLeft && s.Status == 0 {
			s.Status = 499
		}
	}
	s.Phases.Total = time.Since(s.Arrived)
	if x.choice.Decode >= 0 && s.Attempts > 0 {
		s.Why = x.choice.Why()
	}
	x.release()
	x.r.finished(s)
}

// failure is the error answer for a reason.
func (x *exchange) failure(why reason) *httpError {
	e := &httpError{Status: why.status(), Type: typeUnavailable, Reason: why.String()}
	switch why {
	case whyNoEngine, whyNoPair:
		return errNoEngine(why.String(), x.m.name)
	case whyShutdown:
		return errDraining()
	case whyPanic:
		return errInternal(nil)
	case whyDeadline, whyPrefillTimeout, whyTransferTimeout:
		e = errTimeout(why.String(), nil)
	case whyRefused, whyPairFailed, whyMoved:
		e.Msg, e.RetryAfter = "The engine refused the request.", time.Second
	default:
		e = errBadUpstream(nil)
	}
	e.Reason = why.String()
	return e
}

func stack() string { return string(debug.Stack()) }

func fraction(k, n int) string { return strconv.Itoa(k) + "/" + strconv.Itoa(n) }
