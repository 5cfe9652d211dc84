package reclaim

import (
	"context"
	"errors"
	"strconv"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/openai/jsonscan"
)

// FreeDecode frees the KV that decode holds for an ended request because prefill has yet to write it. It blocks until the KV is free or
// counted as leaked.
//
// If prefill has answered already, it may have lost what it was to write, and decode's registration too. Asking prefill again frees
// decode's blocks only if the registration is still there, and prefill's answer does not show that.
func (r *Reclaimer) FreeDecode(ctx context.Context, m *Job) {
	defer m.EndLeg()
	f := newFreeing(r, m)
	for !f.next(ctx) {
	}
}

// freeing is the work on KV that decode holds. It acts on what decodeHeld decides, and tells it what came of that.
type freeing struct {
	*Reclaimer
	m       *Job
	held    decodeHeld
	unnamed bool          // prefill has not answered and uses the request's own id: a second request with this id is safe only after the first
	ending  string        // for Freed
	since   time.Time     // a request sent to decode after this shows that decode has noticed the end
	check   livenessCheck // of prefill's run
	pause   time.Duration // before the next one
}

func newFreeing(r *Reclaimer, m *Job) *freeing {
	answered := m.FirstParams != nil
	f := &freeing{
		Reclaimer: r, m: m, ending: "prefill_lost", since: m.Closed, pause: 100 * time.Millisecond,
		unnamed: !answered && m.Prefill.Origin.Entry.RequestIDRandomizationDisabled,
	}
	o := &f.held
	o.agent, o.channel, o.named = m.Snapshot.Agent != nil, m.run != "", m.Decode.Origin.Entry.RequestIDRandomizationDisabled
	o.finished, o.open = answered, m.OpenLeg != nil && m.BegunInOrder
	o.lost = f.unnamed && m.PrefillLost
	o.barred = answered && m.plainlyNamed() || o.lost && !m.Noticed
	if m.NoHandOff {
		f.runEnded("nothing_handed_off")
	}
	return f
}

// next takes one step. It reports true after the last one.
func (f *freeing) next(ctx context.Context) (done bool) {
	m, o := f.m, &f.held
	if c := m.Prefill.Endpoint.Load(); c != nil && c.EngineID != m.Handoff.Endpoint.EngineID {
		f.runEnded("prefill_restarted")
	}
	o.over, o.down = ctx.Err() != nil, m.Prefill.Down.Load()
	s, why := o.next()
	if o.open && !s.leavesOpen() || o.run == runLives && s != stepIdle && s != stepFlush {
		f.endLeg()
	}
	switch s {
	case stepNothing:
		f.written(ctx)
		return true
	case stepCount:
		f.CountLeak(ctx, m, m.Decode, why)
		if o.run == runLives {
			f.FreeFirstAnswer(ctx, m, Possible)
		}
		return true
	case stepNotifyDecode:
		f.notifyDecode(ctx, m, f.ending)
		return true
	case stepFlush:
		return f.awaitFlush(ctx)
	case stepAskAgain:
		f.askAgain(ctx)
	case stepClear:
		if o.lost = !f.cleared(ctx, m); o.lost { // its run may have ended meanwhile
			f.checkRun(ctx)
			f.since, o.barred = time.Now(), o.run == runLives
		}
	case stepLook:
		f.look(ctx)
	case stepIdle:
		if o.finished = f.rests(ctx, m); !o.finished {
			f.checkRun(ctx)
			background.Sleep(ctx, time.Second)
		}
	case stepAwait:
		o.begun = f.begun(ctx, m)
		f.endLeg()
		f.since = time.Now()
	case stepBarrier:
		if o.passed = f.wait(ctx, m.Snapshot, m.Decode, m.model, f.since); !o.passed {
			o.over = true
		}
	}
	return false
}

// runEnded notes that prefill's run is over, or will never write, and how the hand-off ended by that.
func (f *freeing) runEnded(ending string) { f.ending, f.held.run = ending, runOver }

func (f *freeing) checkRun(ctx context.Context) {
	f.held.run = f.check.at(ctx, f.m.Snapshot, f.m.Prefill, f.m.Handoff.Endpoint)
}

func (f *freeing) endLeg() {
	f.held.open = false
	f.m.EndLeg()
}

// written counts what is free after prefill has written again.
func (f *freeing) written(ctx context.Context) {
	m := f.m
	if m.FirstParams != nil {
		f.CountLeak(ctx, m, m.Decode, CausePossible)
		f.FreeFirstAnswer(ctx, m, Possible)
	} else {
		f.Leaks.reclaimed(f.ending, "asked_again")
	}
	if m.Handoff.KVParams != nil { // decode's leg may have ended before decode registered: then prefill waits for decode
		f.FreePrefill(ctx, m, PrefillHeld{Answered: true, Asked: true}, unlikely)
	}
}

// askAgain asks prefill again under the same id.
func (f *freeing) askAgain(ctx context.Context) {
	m, o := f.m, &f.held
	o.tried = true
	switch f.repeat(ctx, m) {
	case dispatch.EvPrefillUsable, dispatch.EvPrefillRejected: // what prefill rejects, decode has rejected too
		o.written = true
	case dispatch.EvPrefillMoved:
		f.runEnded("prefill_restarted")
		f.since = time.Now()
	case dispatch.EvPrefillRefused:
	default:
		if o.lost = f.unnamed && m.Again != nil; o.lost { // like the first
			o.run, o.barred, m.Closed = runUnknown, !m.Noticed, time.Now()
		}
	}
}

// look finds out whether prefill's run is over, and pauses if it is not.
func (f *freeing) look(ctx context.Context) {
	o := &f.held
	f.checkRun(ctx)
	switch {
	case o.run == runOver:
		f.since = time.Now()
		return
	case o.run == runLives && o.lost:
		return
	}
	background.Sleep(ctx, f.pause)
	f.pause, o.tried = min(2*f.pause, time.Second), false
}

// awaitFlush waits until prefill writes nothing more for the request. It reports true if decode turns out to have all its KV.
func (f *freeing) awaitFlush(ctx context.Context) (done bool) {
	m, o := f.m, &f.held
	switch {
	case !f.awaitHandOff(ctx, m):
		f.checkRun(ctx)
	case m.OpenLeg.TookAll(): // it was only slow
		return true
	default:
		o.flushed, o.begun = true, !m.OpenLeg.State().Resolved()
		f.endLeg()
	}
	f.since = time.Now()
	return false
}

// BeginsWithin bounds the wait for decode to begin with a request. Until then, blocks that decode allocates for prefill engines that are
// gone are missing to other requests.
const BeginsWithin = 10 * time.Second

// begun waits until decode has surely begun with the request, whose leg is still open, and reports whether that is shown: a request sent
// long enough after it has completed.
func (r *Reclaimer) begun(ctx context.Context, m *Job) bool {
	ctx, cancel := context.WithTimeout(ctx, BeginsWithin)
	defer cancel()
	return r.wait(ctx, m.Snapshot, m.Decode, m.model, m.Closed) && !m.OpenLeg.State().Resolved()
}

// handOffWithin bounds one wait for a hand-off. After it the liveness of prefill's run is checked.
const handOffWithin = 2*BarrierAfter + time.Second

// awaitHandOff waits until a whole later request was handed over between the two engines, or decode's leg has brought tokens, and reports
// whether one of them happened.
func (r *Reclaimer) awaitHandOff(ctx context.Context, m *Job) bool {
	ctx, cancel := context.WithTimeout(ctx, handOffWithin)
	defer cancel()
	asks := !m.Probe || r.pairs.Ready(fleet.StockRuns(m.Prefill, m.Decode))
	return r.handedOver(ctx, m, m.Closed, asks) || m.OpenLeg.TookAll()
}

// repeat asks prefill again under the same id, and returns what the answer means. If a new run of prefill answers, what that run now holds
// is freed.
func (r *Reclaimer) repeat(ctx context.Context, m *Job) dispatch.EventKind {
	if m.Again == nil {
		return dispatch.EvPrefillLost
	}
	var l leg.Leg
	l.Open(ctx, m.Prefill)
	defer l.End()
	v := l.AskWhole(&m.Again.Request, int(m.Snapshot.Limits.Answer))
	m.Noticed = l.Acknowledged()
	if v != leg.Usable {
		return v.PrefillEvent().Kind
	}
	if l.Answer.KVParams == nil {
		return dispatch.EvPrefillUsable // it has finished, and written, though it does not say so
	}
	params := append([]byte(nil), l.Answer.KVParams...)
	if m.conn.Accept(&m.Handoff, params) != dispatch.EvPrefillMoved {
		m.Handoff.KVParams = params
		return dispatch.EvPrefillUsable
	}
	if c, ok := connector.ParseEndpoint(params); ok {
		r.monitor.Moved(m.Prefill, m.Handoff.Endpoint, c)
	}
	moved := *m
	moved.Handoff.KVParams = params
	r.Start(&moved, func(ctx context.Context) { r.FreePrefill(ctx, &moved, PrefillHeld{Answered: true}, Certain) }, nil)
	return dispatch.EvPrefillMoved
}

// clearWithin bounds one wait for prefill to be done with a request whose answer was lost.
const clearWithin = 4 * BarrierAfter

// cleared waits until prefill has nothing left of a request whose leg ended without a usable answer, and reports whether that is shown.
// First a later request must complete: then the request does not run any more. It may have finished before, and prefill may hold KV under
// its name. So prefill is notified that the KV was taken, and another later request must complete after that.
func (r *Reclaimer) cleared(ctx context.Context, m *Job) bool {
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	if m.Snapshot.Agent == nil || !r.wait(ctx, m.Snapshot, m.Prefill, m.model, m.Closed) {
		return false
	}
	if err := r.notifyNamed(ctx, m); err != nil {
		return false
	}
	return r.wait(ctx, m.Snapshot, m.Prefill, m.model, time.Now())
}

// rests reports whether prefill does nothing that was asked before the end of m: it has noticed that end, and reports no request at all.
func (r *Reclaimer) rests(ctx context.Context, m *Job) bool {
	if !r.wait(ctx, m.Snapshot, m.Prefill, m.model, m.Closed) {
		return false
	}
	l, answer := r.monitor.Load(ctx, m.Prefill)
	return answer == monitor.LoadKnown && l.Running+l.Waiting == 0
}

// notifyDecode notifies decode's ranks that the KV they wait for has come. As the request is over, they free their blocks.
func (r *Reclaimer) notifyDecode(ctx context.Context, m *Job, ending string) {
	tp := max(1, m.Decode.Origin.Entry.TensorParallel)
	to, err := ranksOf(ctx, m.Snapshot, m.Decode, &connector.PrefillEndpoint{EngineID: m.run, TP: tp, PP: 1})
	if errors.Is(err, errMoved) {
		r.Leaks.reclaimed(ending, "restart")
		return
	}
	c := m.Handoff.Endpoint
	if err == nil {
		message := string(m.Handoff.Shape.AppendEngineRequest(nil, m.Handoff.Request)) + ":" + strconv.Itoa(c.TP)
		err = m.Snapshot.Agent.Notify(ctx, to, message, c.PP*max(1, c.TP/tp))
	}
	if err != nil {
		r.log.Warn("notification", "engine", m.Decode.Name, "transfer_id", m.Handoff.Transfer, "err", err)
		r.CountLeak(ctx, m, m.Decode, CauseNotNotified)
		return
	}
	r.Leaks.reclaimed(ending, "notify_decode")
	r.log.Info("reclaimed", "engine", m.Decode.Name, "transfer_id", m.Handoff.Transfer, "by", "notify_decode")
}

// plainlyNamed reports whether prefill knows the request by the id that it was given, as far as its answer tells.
func (m *Job) plainlyNamed() bool {
	h, ok := connector.ParseKVParams(m.FirstParams)
	return !ok || len(h.Request) == 0 || string(jsonscan.Unescape(nil, h.Request)) == string(m.Handoff.Shape.AppendEngineRequest(nil, m.Handoff.Request))
}
