package exchange

import (
	"fmt"
	"math"
	"strings"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/migration"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
	"pdrouter/router/report"
)

// perform does one action. An event that the action makes at once goes to ownEvents (postOwn), not to the mailbox.
func (x *Exchange) perform(act dispatch.Action, e dispatch.Event) {
	a := x.cur
	switch act.Do {
	case dispatch.DoPlan, dispatch.DoPlanAlone, dispatch.DoPlanWithoutTokens:
		x.noHandOff = x.noHandOff || act.Do == dispatch.DoPlanAlone
		if act.Do == dispatch.DoPlanWithoutTokens {
			x.withoutTokens, x.doubted, x.failed = true, a.legOf(e).Engine, e.Kind
		}
		if a != nil {
			a.settleNoted()
			a.letGo()
		}
		x.postOwn(x.plan())
		x.selection.ForgetPrompt() // does nothing unless the policy looks at prefixes
	case dispatch.DoWait:
		if !x.awaitsMove() {
			x.waits++
		}
		x.traceRetry(x.cur)
		x.cur = nil
		x.acceptOnly(nil)
	case dispatch.DoPair:
		x.pair(a)
	case dispatch.DoAskBoth:
		x.startPrefill(a)
		x.askForDecode(a)
	case dispatch.DoAskPrefill:
		x.startPrefill(a)
	case dispatch.DoAskDecode:
		if a.split {
			a.h.KVParams = a.prefill.Answer.KVParams
			x.handTokens(a)
			x.expect(a)
		}
		x.askForDecode(a)
		a.tokens.release()
	case dispatch.DoAskRest:
		x.askRest(a)
	case dispatch.DoExpectDecode: // timers and a watch, which change nothing if decode's answer comes in time
		x.expect(a) // without a client its timer ends a whole answer's leg or, by push, leads to DoCheckDecode
		if !x.HasOutcome {
			x.watchLater(a)
		}
	case dispatch.DoWatchTransfer:
		x.watchTransfer(a)
	case dispatch.DoAwaitRejection:
		if x.drains {
			a.checkTimer = x.deliverAfter(drainGrace, a, dispatch.EvCheckDue)
		}
	case dispatch.DoCheckDecode:
		x.checkDecode(a)
	case dispatch.DoBlamePrefill:
		x.failed = e.Kind
		x.blame(a, a.prefill.Engine, a.legOf(e), act.Why)
	case dispatch.DoBlameDecode:
		x.failed = e.Kind
		x.blame(a, a.decode.Engine, &a.decode, act.Why)
	case dispatch.DoReplyStream:
		x.deadlineTimer.Stop()
		x.Sum.Status = 200
	case dispatch.DoJoin: // joinFirst has done it
	case dispatch.DoBreak:
		x.forgetLate(a, act.Why)
		x.Reply.Stream.Break(act.Why)
		x.streamFailed()
	case dispatch.DoReplyWhole:
		x.replyWhole(a)
	case dispatch.DoReplyPrefill:
		x.replyRaw(a, &a.prefill, reason.PrefillRejected)
	case dispatch.DoReplyDecode:
		x.replyRaw(a, &a.decode, act.Why)
	case dispatch.DoReplyError:
		if l := a.legOf(e); l != nil {
			x.noteFailure(a, l, act.Why)
		}
		x.Reply = Reply{Err: x.failure(act.Why)}
		if e := x.Reply.Err; x.Sum.Attempts > 0 && !e.NoRetry && act.Why != reason.Shutdown && !x.m.Retries.Invite(time.Now()) {
			e.NoRetry = true // its client's retries would cost the engines more than they are given
		}
		x.Sum.Status = int32(x.Reply.Err.Status)
	case dispatch.DoPlanContinuation:
		x.postOwn(x.planContinuation(a, act.Why))
	case dispatch.DoAskContinuation:
		x.askContinuation(a)
	case dispatch.DoGoOn:
		x.Sum.Continued++
		x.Sum.Decode = a.decode.Engine.Name
	case dispatch.DoGiveUp:
		x.Sum.NotContinued = "failed"
	case dispatch.DoAppendEnd:
		x.Reply.Stream.AppendEnd()
	case dispatch.DoCut:
		if l := a.legOf(e); l != nil {
			x.noteFailure(a, l, e.Why)
		}
		x.Reply.Err = x.failure(act.Why)
		x.Reply.Stream.Cut(x.Reply.Err)
	case dispatch.DoDrain:
		x.reserveDrain(e.Why)
	case dispatch.DoDone:
		x.done(act)
	case dispatch.DoDrop:
		if e.Kind.OfTimer() {
			break // what it was for is over
		}
		x.all.Log.Warn("event out of place", "request_id", x.Sum.RequestID, "event", e.Kind.String(), "state", x.d.State.String())
	default:
		x.endLegs(a, act.Do, e.Why)
	}
}

// endLegs does one action that ends the legs of an attempt.
func (x *Exchange) endLegs(a *attempt, do dispatch.ActionKind, why reason.Reason) {
	switch do {
	case dispatch.DoClosePrefill:
		x.closePrefill(a)
	case dispatch.DoCloseDecode:
		a.closeDecode()
	case dispatch.DoDisownDecode:
		a.disown()
	case dispatch.DoFinishPrefill:
		x.finishPrefill(a)
	case dispatch.DoFreeDecode:
		x.freeDecode(a)
	case dispatch.DoFreePrefill:
		x.freePrefill(a)
	case dispatch.DoCancel:
		x.all.Transfers.Cancel(x.s.Config, x.s.Token, a.h.Transfer, why, a.prefill.Engine, a.decode.Engine)
	case dispatch.DoFreeTaken:
		x.freeTaken(a)
	case dispatch.DoAbandon:
		x.abandon(a)
	case dispatch.DoCountLeak:
		x.countLeak(a)
	}
	if !x.HasOutcome {
		x.Sum.Leaked = x.Sum.Leaked || a.leaked
	}
}

// reserveDrain takes a place in the background for the legs to go on in, as the request is over for its client. Run starts drain there
// when it returns, after DoDone. If there is no place the legs end now. why is the reason for which the request ends.
func (x *Exchange) reserveDrain(why reason.Reason) {
	if x.drains = x.all.Tasks.Reserve(x.s.Config.Limits.Background); x.drains {
		x.b.Retain() // until it is drained
		return
	}
	for _, act := range x.d.Step(dispatch.Event{Kind: dispatch.EvNoDrain, Why: why}, nil) {
		x.endLegs(x.cur, act.Do, why)
	}
}

// blame notes that the attempt failed on an engine, and plans without it.
func (x *Exchange) blame(a *attempt, e *fleet.Engine, l *leg.Leg, why reason.Reason) {
	x.noteFailure(a, l, why)
	x.last, x.excluded = why, x.excluded.Add(e, l.RetryAfter)
	if a.split && (why == reason.TransferTimeout || l.Answer.ErrorCode == leg.CodeTransferFailed || l.BlameBoth) { // either side may be at fault
		peer := a.prefill.Engine
		if e == peer {
			peer = a.decode.Engine
		}
		x.excluded = x.excluded.Add(peer, 0)
	}
	x.forgetLate(a, why)
}

// forgetLate has the attempt's pair shake hands again if its transfer was late.
func (x *Exchange) forgetLate(a *attempt, why reason.Reason) {
	if why == reason.TransferTimeout {
		x.all.Pairs.ForgetPair(a.runs())
		x.all.Pairs.Schedule()
	}
}

const MaxLoggedAnswer = 256 // bytes of an engine's error answer in the log and in /requests

// noteFailure enters an attempt that failed for what came of a leg into the log and the summary.
func (x *Exchange) noteFailure(a *attempt, l *leg.Leg, why reason.Reason) {
	f := report.Failure{
		Attempt: int(x.Sum.Attempts), Engine: l.Engine.Name, Reason: why.String(), Status: l.Status,
		Cause: leg.MaskCredentials(&a.h, l.Reason(), l.Engine, x.forwarded), Message: l.Message(&a.h, x.m.Connector.Traits().UnwrappedErrors, x.forwarded, x.m.Prefill, x.m.Decode), Rest: l.RetryAfter,
	}
	if l.Status != 0 && l.Status != 200 || l.Answer.Failed {
		f.Answer = openai.Clip(strings.ToValidUTF8(leg.MaskCredentials(&a.h, string(l.Body[:min(len(l.Body), answer.MaxErrorMessage)]), l.Engine, x.forwarded), "?"), MaxLoggedAnswer)
	}
	if why == reason.AnswerTooLarge {
		_, f.Message = leg.ExceededBound(l.Failure, x.s.Config.Limits)
	}
	x.Sum.Failures = append(x.Sum.Failures, f)
	x.trace().End(l, time.Now(), f.Reason)
	x.all.Log.Info("attempt failed", "request_id", x.Sum.RequestID, "attempt", f.Attempt, "engine", f.Engine,
		"reason", f.Reason, "transfer_id", a.h.Transfer, "status", f.Status, "cause", f.Cause, "answer", f.Answer)
}

// lastFailure is the last attempt that failed; zero if none did.
func (x *Exchange) lastFailure() (f report.Failure) {
	if n := len(x.Sum.Failures); n > 0 {
		f = x.Sum.Failures[n-1]
	}
	return f
}

// replyWhole makes decode's answer, from which the engines' hand-off was taken out, the client's.
func (x *Exchange) replyWhole(a *attempt) {
	x.awaitRecorded() // blocks only for a response of /v1/responses that an engine keeps
	l := &a.decode
	x.usage.Of(&l.Answer, a.prefillCached())
	if x.turn != nil {
		l.Body = x.turn.whole(l.Body)
	}
	if a.split {
		cached, created := a.Cached()
		l.Body = answer.SetCached(l.Body, 0, cached, created) // prefill's count of cached tokens in place of decode's
	}
	x.Reply = Reply{Status: 200, ContentType: "application/json", Body: l.Body}
	if x.b.Passthrough != nil {
		x.Reply.ContentType, x.Reply.Metadata = l.ContentType, l.MediaMetadata()
	}
	x.Sum.Status = 200
}

// replyRaw makes an engine's refusal the client's, status and body as they are but for the engines' hand-off.
func (x *Exchange) replyRaw(a *attempt, l *leg.Leg, why reason.Reason) {
	body, ok := a.h.WithoutHandoff(l.Body)
	if l.Failure != nil { // it was too large to be read
		x.Reply = Reply{Err: errRejected(l.Status, why)}
		x.Sum.Status = int32(l.Status)
		return
	}
	if !ok {
		x.all.Log.Warn("an engine's refusal names where engines meet", "request_id", x.Sum.RequestID, "engine", l.Engine.Name, "status", l.Status,
			"answer", openai.Clip(leg.MaskCredentials(&a.h, string(l.Body), l.Engine, x.forwarded), answer.MaxErrorMessage))
		x.Reply = Reply{Err: errRejected(l.Status, why)}
		x.Sum.Status = int32(l.Status)
		return
	}
	if x.m.Connector.Traits().RequiresSplit {
		body = connector.WrapError(body)
	}
	ctype := "application/json"
	if l.ContentType != "" {
		ctype = l.ContentType
	}
	x.Reply = Reply{Status: l.Status, ContentType: ctype, Body: body}
	x.Sum.Status = int32(l.Status)
}

// prefillCached says how many tokens of the prompt were cached, where that is for prefill to say; else nil.
func (a *attempt) prefillCached() relay.CachedTokens {
	if !a.split {
		return nil
	}
	return a
}

// Cached is how many tokens of the prompt prefill had cached, 0 as long as it has not said, and how many it has cached for this request,
// below 0 if that is not known.
func (a *attempt) Cached() (cached, created int) {
	if !a.prefillAnswered() {
		return 0, -1
	}
	return a.prefill.Answer.Cached(), a.prefill.Answer.Created()
}

// fit32 is a number of tokens as a summary has room for it: engines claim what they like.
func fit32(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// done gives the request its outcome and writes its summary. It happens once.
func (x *Exchange) done(act dispatch.Action) {
	defer x.ended()
	x.deadlineTimer.Stop()
	x.clientWatch.Stop()
	now, s := time.Now(), &x.Sum
	s.PromptTokens, s.OutputTokens, s.CachedTokens = fit32(x.usage.Prompt), fit32(x.usage.Output), fit32(x.usage.Cached)
	x.observeAnswer(now)
	x.countCached()
	x.countHanded()
	if x.turn != nil {
		x.endMove(migration.Unneeded)
		x.noteTurn(act.Outcome)
	}
	x.observeCached()
	x.observeRecompute(now)
	x.observeLatency(now) // tells the fleet how long its engines took
	switch {
	case x.drains:
		x.restrict(acceptsLegs, x.cur)
	case x.cur != nil:
		x.cur.letGo()
		fallthrough
	default:
		x.restrict(acceptsNone, nil)
	}
	s.Outcome = act.Outcome
	if act.Why != reason.None {
		x.Why, s.Reason = act.Why, act.Why.String()
		if act.Outcome == dispatch.ClientLeft && s.Status == 0 {
			s.Status = 499
		}
	}
	s.Phases.Total = now.Sub(s.Arrived)
	if x.choice.Decode >= 0 && s.Attempts > 0 {
		s.Why = x.choice.Why()
	}
}

// ended sets the outcome and reports it to the caller, the report and the set of live requests, even if one of them panics.
func (x *Exchange) ended() {
	x.HasOutcome = true
	defer x.b.Release() // the exchange's own hold: its legs, its drain and jobs of reclaim have theirs
	if !x.branch {
		defer x.all.Report.Finished(&x.Sum, x.trace(), x.s.Observe) // logs the summary, and hands it to the metrics
	}
	x.all.live.remove(x)
	if x.caller != nil {
		x.caller.Ended(x)
	}
}

// failure is the error answer for a reason.
func (x *Exchange) failure(why reason.Reason) *openai.Error {
	e, last := openai.NewError(why, "The engine's answer could not be used."), x.lastFailure()
	switch said := last.Message; why {
	case reason.Shutdown:
		return openai.ErrDraining()
	case reason.Panic:
		return openai.ErrInternal(nil)
	case reason.AnswerTooLarge: // every engine's answer would be as large
		e.Msg = "The engine's answer is too large for the gateway: " + said + "."
		return e
	case reason.Deadline, reason.PrefillTimeout, reason.TransferTimeout:
		e.Msg = "The request timed out (" + why.String() + ")."
		return e
	case reason.NoEngine, reason.NoPair, reason.NoPrefill:
		e.Msg = fmt.Sprintf("No engine is available for the model `%s`.", openai.Clip(x.m.Name, 256))
	case reason.QueueTimeout:
		e = openai.ErrQueue(why, x.m.Name)
	case reason.RetryBudget:
		e.Msg = fmt.Sprintf("The engines failed the request (%s), and too many requests are being tried again.", x.last)
		if said != "" {
			e.Msg += " The last engine's message: " + said
		}
	case reason.EngineRefused, reason.PairFailed, reason.EngineRestarted:
		e.Msg, e.RetryAfter = "The engine refused the request.", max(e.RetryAfter, last.Rest)
		if said != "" && why == reason.EngineRefused {
			e.Msg = "The engine refused the request: " + said
		}
	case reason.CredentialsRefused:
		e.Msg = "The engine refused the gateway's credentials."
	case reason.DecodeFailed, reason.PrefillFailed:
		if said != "" {
			e.Msg = "The engine failed: " + said
		}
	}
	e.RetryAfter = max(e.RetryAfter, x.pause)
	return e
}

// errRejected stands for an engine's refusal whose words are not for clients.
func errRejected(status int, why reason.Reason) *openai.Error {
	e := openai.NewError(why, "The engine rejected the request.")
	e.Status = status
	return e
}
