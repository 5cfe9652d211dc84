package exchange

// Decode's first token shows that the KV of a split request has come. Until then three things may show that it does not come:
//
//   - expect (DoExpectDecode) starts when prefill has answered: the first token is due within timeouts.transfer. An answer that is not
//     streamed brings its first token with its last, so there the KV itself is due, if engines report its arrival (landed).
//   - watchTransfer (DoWatchTransfer) is for an answer that is not streamed of a connector whose prefill writes: no engine reports the
//     arrival, so package kvwatch polls both engines until they show how the transfer ended.
//   - checkDecode (DoCheckDecode) is for a decode leg whose client has left: ending it before decode has the KV would leak
//     blocks. Decode's load is read once, after a short time. Then the leg is ended, or left open for package reclaim.
//
// All of them end an attempt in the same way: by onTransferLost where decode's leg must stay open for package reclaim, otherwise by
// canceling the leg.

import (
	"context"
	"errors"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvwatch"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
)

// transferLost sends the owner the event that the attempt's KV has not come. Decode's leg is still open.
func (x *Exchange) transferLost(a *attempt, why reason.Reason) {
	x.deliver(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvTransferLost, Why: why}, at: time.Now()})
}

// expect sets when decode's first token is due. It may be called twice; the first call counts.
func (x *Exchange) expect(a *attempt) {
	if !a.due.IsZero() || a.decode.State().Resolved() {
		return
	}
	limit := x.s.Config.Timeouts.Transfer
	a.due = time.Now().Add(limit)
	switch {
	case a.wholeWithoutClient():
		x.checkIn(a, min(limit, drainGrace))
	case !a.unstreamed && a.onTransferLost != nil:
		a.transferTimer = time.AfterFunc(limit, func() {
			if a.decode.SetKV(leg.KVOverdue) {
				a.onTransferLost(reason.TransferTimeout)
			}
		})
	case !a.unstreamed:
		a.transferTimer = a.decode.CancelAfter(limit, leg.ErrTransferLate)
	case a.landed != nil:
		a.transferTimer = time.AfterFunc(limit, func() {
			if !a.landed() {
				a.decode.Cancel(leg.ErrTransferLate)
			}
		})
	default: // whole, and no engine reports the KV: by push watchLater has the transfer polled until a.due
	}
}

// watchLater starts a watch of the transfer after a short pause, if nothing else shows how it ends. The watch changes nothing unless the KV
// does not come.
func (x *Exchange) watchLater(a *attempt) {
	if x.m.Connector.Traits().Writes && a.unstreamed && a.h.Endpoint != nil && a.checkTimer == nil {
		a.checkTimer = x.deliverAfter(kvwatch.Pause(x.s.Config.Timeouts.Transfer), a, dispatch.EvWatchDue)
	}
}

// watchTransfer watches the transfer until decode's leg is over.
func (x *Exchange) watchTransfer(a *attempt) {
	w := &kvwatch.Watch{
		Monitor: x.all.Monitor, Decode: &a.decode, Prefill: a.prefill.Engine, Endpoint: a.h.Endpoint, Due: a.due, Transfer: x.s.Config.Timeouts.Transfer,
		Lost: a.onTransferLost, Asking: x.s.Config.Timeouts.SideChannelAnswer(),
	}
	x.all.Tasks.Go("transfer watch", func() { w.Run(&a.decode) }) // a leg is a context: it ends the watch
}

// hurry notes that no client waits for the answer. Ending decode's leg before decode has its KV would leak blocks. A stream's first token
// shows that it has. Without a stream nothing shows it, so the leg gets a short time after prefill's answer if prefill writes, or the
// time of a transfer if decode reads.
func (x *Exchange) hurry(a *attempt) {
	a.hurried = true
	if !a.unstreamed || a.transferTimer != nil || a.decode.State().Resolved() || a.due.IsZero() {
		return
	}
	d := time.Until(a.due)
	if x.m.Connector.Traits().Mode != dispatch.InTurn {
		d = min(drainGrace, d)
	}
	x.checkIn(a, d)
}

// checkIn ends the decode leg after d. If prefill writes, decode's load is checked first.
func (x *Exchange) checkIn(a *attempt, d time.Duration) {
	if a.checkTimer != nil {
		a.checkTimer.Stop()
	}
	if a.onTransferLost == nil {
		a.checkTimer = a.decode.CancelAfter(d, leg.ErrHurried)
		return
	}
	a.checkTimer = x.deliverAfter(d, a, dispatch.EvCheckDue)
}

// checkDecode ends decode's leg. It stays open if decode does not run all its requests and can be notified to free this one's blocks.
func (x *Exchange) checkDecode(a *attempt) {
	r, e := x.all, a.decode.Engine
	x.all.Tasks.Go("load check", func() {
		atWork, said := false, monitor.LoadUnavailable
		defer func() {
			switch {
			case atWork:
				a.decode.Cancel(leg.ErrAtWork)
			case said == monitor.LoadNotReported, x.s.Reclaim.CannotNotify(e) != reclaim.CauseNone:
				a.decode.Cancel(leg.ErrHurried)
			case a.decode.SetKV(leg.KVOverdue):
				a.onTransferLost(reason.ClientLeft)
			}
		}()
		ctx, cancel := context.WithTimeout(r.Tasks.Context(), drainGrace)
		defer cancel()
		var l monitor.Load // what decode's metrics say: requests at work, and requests that wait for a place or for KV
		l, said = r.Monitor.Load(ctx, e)
		atWork = said == monitor.LoadKnown && l.Running > 0 && l.Waiting == 0
	})
}

// deliverAfter sends the attempt's owner an event after d.
func (x *Exchange) deliverAfter(d time.Duration, a *attempt, k dispatch.EventKind) *time.Timer {
	return time.AfterFunc(d, func() { x.deliver(envelope{a: a, e: dispatch.Event{Kind: k}}) })
}

// worked reports whether decode ran all its requests when its leg was ended, so that this one had its KV.
func (a *attempt) worked() bool { return errors.Is(a.decode.Cause(), leg.ErrAtWork) }

// landed returns a function that reports whether a transfer to the engine is over. It reports true too if the engine's event stream was
// not open all the time since this call: then its events may be missing. It returns nil if the engine has no open event stream.
func (all *Exchanges) landed(id string, decode *fleet.Engine) func() bool {
	if decode.ControlURL == "" {
		return nil
	}
	stream := decode.EventStreams.Load()
	if !decode.EventsOpen.Load() {
		return nil
	}
	return func() bool {
		return all.Report.Transfers.Over(id) || !decode.EventsOpen.Load() || decode.EventStreams.Load() != stream
	}
}

// drainGrace is how long a leg without a client may continue to the point where ending it leaks nothing.
const drainGrace = time.Second
