package reclaim

import (
	"context"
	"errors"
	"strconv"

	"pdrouter/internal/background"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/openai/jsonscan"
)

// FreeFirstAnswer frees what prefill may hold since its first answer.
func (r *Reclaimer) FreeFirstAnswer(ctx context.Context, m *Job, d Certainty) {
	if m.FirstParams == nil {
		return
	}
	was := *m
	was.Handoff.KVParams = m.FirstParams
	r.FreePrefill(ctx, &was, PrefillHeld{Answered: true, Asked: true}, d)
}

// FreePrefill frees the KV that prefill holds, or counts it as leaked.
func (r *Reclaimer) FreePrefill(ctx context.Context, m *Job, l PrefillHeld, d Certainty) {
	l.agent = m.Snapshot.Agent != nil
	l.reads = m.conn.Traits().Reads
	l.Answered = l.Answered && m.Handoff.KVParams != nil
	end := "not_taken"
	if l.Asked {
		end = "prefill_waits"
	}
	for {
		if l.Asked && l.reads && !l.ended {
			l.ended = decodeOver(ctx, m)
		}
		switch s, why := l.next(); s {
		case stepNotifyPrefill:
			if err := r.notifyPrefill(ctx, m); err == nil {
				r.Leaks.reclaimed(end, "notify_prefill")
				return
			}
			l.notifyFailed = true
		case stepTake:
			if r.taken(ctx, m) {
				r.Leaks.reclaimed(end, "decode_leg")
				return
			}
			l.TakeFailed = true
		case stepBarrier:
			if l.passed = r.wait(ctx, m.Snapshot, m.Decode, m.model, m.Closed); !l.passed {
				r.leakIf(ctx, m, CauseNoBarrier, d)
				return
			}
		default:
			r.leakIf(ctx, m, why, d)
			return
		}
	}
}

// notifyPrefill notifies prefill's ranks that what they hold was taken.
func (r *Reclaimer) notifyPrefill(ctx context.Context, m *Job) error {
	h, ok := connector.ParseKVParams(m.Handoff.KVParams)
	c, known := connector.ParseEndpoint(m.Handoff.KVParams)
	if !ok || !known || len(h.Request) == 0 {
		return errors.New("prefill's answer does not say by which name it knows the request")
	}
	to, err := ranksOf(ctx, m.Snapshot, m.Prefill, c)
	if err != nil {
		return err
	}
	consumers := c.TP // one consumer for each producer rank
	if m.conn.Traits().Reads {
		consumers = 1 // as many messages as it says are waited for
	}
	message := string(jsonscan.Unescape(nil, h.Request)) + ":" + strconv.Itoa(consumers)
	if err := m.Snapshot.Agent.Notify(ctx, to, message, 1); err != nil {
		r.log.Warn("notification", "engine", m.Prefill.Name, "transfer_id", m.Handoff.Transfer, "err", err)
		return err
	}
	r.log.Info("reclaimed", "engine", m.Prefill.Name, "transfer_id", m.Handoff.Transfer, "by", "notify_prefill")
	return nil
}

// Unwritten frees the KV of a push whose decode leg failed after prefill's answer. If prefill's run is over, decode may hold blocks.
// Otherwise prefill may, if decode had not begun.
func (r *Reclaimer) Unwritten(ctx context.Context, m *Job) {
	var check livenessCheck
	run := runUnknown
	for range 4 {
		if run = check.at(ctx, m.Snapshot, m.Prefill, m.Handoff.Endpoint); run != runUnknown {
			break
		}
		background.Sleep(ctx, monitor.RefusedFor)
	}
	if run == runOver {
		r.FreeDecode(ctx, m)
		return
	}
	r.FreePrefill(ctx, m, PrefillHeld{Answered: true, Asked: true}, Possible)
}

// NotifyNamed notifies prefill that what it may hold for a leg that was ended was taken. That is safe only after prefill has noticed the
// end: otherwise it would drop what it still works on.
func (r *Reclaimer) NotifyNamed(ctx context.Context, m *Job) {
	if !r.rests(ctx, m) {
		return
	}
	if err := r.notifyNamed(ctx, m); err != nil {
		r.log.Info("notification", "engine", m.Prefill.Name, "transfer_id", m.Handoff.Transfer, "err", err)
	}
}

// CannotNotify returns why a decode engine cannot be notified that it need not wait any more; CauseNone if it can.
func (s *Snapshot) CannotNotify(d *fleet.Engine) Cause {
	return decodeHeld{agent: s.Agent != nil, channel: d.ChannelReport().Run != "", named: d.Origin.Entry.RequestIDRandomizationDisabled}.cannotNotify()
}

// notifyNamed notifies prefill's ranks that what they hold under the request's own id was taken.
func (r *Reclaimer) notifyNamed(ctx context.Context, m *Job) error {
	c := m.Prefill.Endpoint.Load()
	if c == nil {
		return errMoved
	}
	to, err := ranksOf(ctx, m.Snapshot, m.Prefill, c)
	if err != nil {
		return err
	}
	return m.Snapshot.Agent.Notify(ctx, to, string(m.Handoff.Shape.AppendEngineRequest(nil, m.Handoff.Request))+":1", 1)
}

// taken sends a decode leg of one token, which takes what prefill holds, and reports whether it succeeded.
func (r *Reclaimer) taken(ctx context.Context, m *Job) bool {
	if m.Taking == nil {
		return false
	}
	var l leg.Leg
	l.Open(ctx, m.Decode)
	defer l.End()
	if l.AskWhole(&m.Taking.Request, int(m.Snapshot.Limits.Answer)) != leg.Usable {
		return false
	}
	r.Answered(m.Snapshot, m.Decode, l.Answer.KVParams)
	return true
}
