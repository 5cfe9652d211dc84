package exchange

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

// transferLost notes that what prefill was to write for the attempt has not come. Decode's leg is open still.
func (x *Exchange) transferLost(a *attempt, why reason.Reason) {
	x.enqueue(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvTransferLost, Why: why}, at: time.Now()})
}

// expect has decode's first token be due. It may be called twice; the first call counts.
//
// An answer that is not streamed may take as long as it is generated, so there it is the transfer itself that is due,
// if there is a way to know of it.
func (x *Exchange) expect(a *attempt) {
	if !a.due.IsZero() || a.decode.State().Over() {
		return
	}
	limit := x.s.Config.Timeouts.Transfer
	a.due = time.Now().Add(limit)
	switch {
	case a.unstreamed && a.hurried:
		x.checkIn(a, min(limit, leftFor))
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
	}
}

// watchLater has the transfer be watched if decode's leg is not over soon, and nothing else tells of the transfer.
func (x *Exchange) watchLater(a *attempt) {
	if x.m.Connector.Traits().Writes && a.unstreamed && a.h.Endpoint != nil && a.watchTimer == nil {
		a.watchTimer = x.postAfter(kvwatch.Pause(x.s.Config.Timeouts.Transfer), a, dispatch.EvWatchDue)
	}
}

// watchTransfer watches the transfer until decode's leg is over.
func (x *Exchange) watchTransfer(a *attempt) {
	w := &kvwatch.Watch{
		Monitor: x.r.Monitor, Decode: &a.decode, Prefill: a.prefill.Engine, Endpoint: a.h.Endpoint, Due: a.due, Transfer: x.s.Config.Timeouts.Transfer,
		Lost: a.onTransferLost, Asking: x.s.Config.Timeouts.SideChannelAnswer(),
	}
	x.r.Tasks.Go("a look at a transfer", func() { w.Run(&a.decode) })
}

// hurry notes that nobody waits for the answer. A decode leg must have begun with what prefill wrote, or else it leaves that
// behind; with its first token it has. One that is not streamed does not tell, so where prefill writes it is given a while
// after prefill's answer, and where it reads itself the time of a transfer.
func (x *Exchange) hurry(a *attempt) {
	a.hurried = true
	if !a.unstreamed || a.transferTimer != nil || a.decode.State().Over() || a.due.IsZero() {
		return
	}
	d := time.Until(a.due)
	if x.m.Connector.Traits().Mode != dispatch.InTurn {
		d = min(leftFor, d)
	}
	x.checkIn(a, d)
}

// checkIn ends the decode leg after d, where prefill writes after a look at whether all that decode has is at work.
func (x *Exchange) checkIn(a *attempt, d time.Duration) {
	if a.watchTimer != nil {
		a.watchTimer.Stop()
	}
	if a.onTransferLost == nil {
		a.watchTimer = a.decode.CancelAfter(d, leg.ErrHurried)
		return
	}
	a.watchTimer = x.postAfter(d, a, dispatch.EvCheckDue)
}

// checkDecode ends decode's leg. If decode is not at work on all its requests, and can be asked to free this one's blocks, the leg stays
// open for that.
func (x *Exchange) checkDecode(a *attempt) {
	r, e := x.r, a.decode.Engine
	x.r.Tasks.Go("a look at a load", func() {
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
		ctx, cancel := context.WithTimeout(r.Tasks.Context(), leftFor)
		defer cancel()
		var l monitor.Load
		l, said = r.Monitor.Load(ctx, e)
		atWork = said == monitor.LoadKnown && l.Running > 0 && l.Waiting == 0
	})
}

// postAfter sends the attempt's owner an event after d.
func (x *Exchange) postAfter(d time.Duration, a *attempt, k dispatch.EventKind) *time.Timer {
	return time.AfterFunc(d, func() { x.enqueue(envelope{a: a, e: dispatch.Event{Kind: k}}) })
}

// worked reports whether a leg that was ended blind had its blocks all the same: decode was at work with all that it had.
func (a *attempt) worked() bool { return errors.Is(a.decode.Cause(), leg.ErrAtWork) }

// landed returns what says whether a transfer to the engine is over, as far as is known: it is taken for over if the
// engine's events cannot be relied on, because its stream was not open all the time from now on.
func (r *Exchanges) landed(id string, decode *fleet.Engine) func() bool {
	if decode.ControlURL == "" {
		return nil
	}
	edition := decode.EventStreams.Load()
	if !decode.EventsOpen.Load() {
		return nil
	}
	return func() bool {
		return r.Report.Transfers.Over(id) || !decode.EventsOpen.Load() || decode.EventStreams.Load() != edition
	}
}
