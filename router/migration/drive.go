package migration

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/reclaim"
	"pdrouter/router/upstream"
)

// driver is the only driver of a Move. One goroutine owns it; the legs run on others and tell it of their ends.
type driver struct {
	*Mover
	*Planned
	conn     connector.Connector
	unneeded context.Context              // ends when the request that waits for the move is over; nil: no request waits
	told     func(Ended)                  // is called when all is noted of its end; may be nil
	asked    atomic.Pointer[fleet.Engine] // last; others read it too

	move   Move
	acts   []Action
	events chan Event // has room for all that legs and the end of the time may say
	h      connector.Handoff
	export leg.Leg
	read   leg.Leg // the target's
	result Result
}

// drive moves the KV, until it is there or what was begun is freed. ctx ends when the time is over, or the gateway stops.
func (d *driver) drive(ctx context.Context) Result {
	d.events, d.result = make(chan Event, 5), Failed
	d.h.Shape = openai.ShapeCompletions
	d.h.Draw()
	begin := Event{Kind: EvStart}
	if d.Pin != nil {
		begin.Kind, d.h.KVParams = EvExported, d.Pin.Params
		d.h.Endpoint, _ = connector.ParseEndpoint(d.Pin.Params) // it was read when the answer came
	}
	if why, any := d.cut(); !any {
		if d.Pin != nil {
			d.perform(Action{Do: DoFreeExport})
		}
		return why
	}
	late := context.AfterFunc(ctx, func() { d.events <- Event{Kind: EvEnd, Why: Late} })
	defer late()
	stops := context.AfterFunc(d.over, func() { d.events <- Event{Kind: EvEnd, Why: Stopped} })
	defer stops()
	if d.unneeded != nil {
		defer context.AfterFunc(d.unneeded, func() { d.events <- Event{Kind: EvEnd, Why: Unneeded} })()
	}
	if !d.name() {
		return Failed
	}
	d.step(begin)
	for d.move.State != StDone {
		d.step(<-d.events)
	}
	return d.result
}

// cut leaves of what is moved what the source still has, as far as both engines say what they have. If nothing is left, it says why.
func (d *driver) cut() (why Result, any bool) {
	model := d.s.Fleet.Models[d.c.model]
	has := d.s.Fleet.Leading(d.c.asFleet(model, fleet.Decode, d.began), d.c.saltText, d.IDs)
	if n, known := has(d.From); known && n < len(d.IDs) && d.Pin == nil {
		if d.IDs = d.IDs[:n-n%blockOf(d.s.Fleet, model)]; len(d.IDs) < max(1, d.s.Config.Migration.MinTokens) {
			return Evicted, false
		}
	}
	if n, known := has(d.To); known && n >= len(d.IDs) {
		return AlreadyThere, false
	}
	return Moved, true
}

func (d *driver) step(e Event) {
	d.acts = d.move.Step(e, d.acts[:0])
	for _, a := range d.acts {
		d.perform(a)
	}
}

func (d *driver) perform(a Action) {
	switch a.Do {
	case DoExport:
		d.ask(&d.export, d.From, d.conn.PrefillMembers(nil, &d.h), d.exported)
	case DoImport:
		d.ask(&d.read, d.To, d.conn.DecodeMembers(nil, &d.h), d.imported)
	case DoCancelExport:
		d.export.Cancel(leg.ErrEnded)
		d.cancel()
	case DoFreeExport:
		d.free(reclaim.PrefillHeld{Answered: true, TakeFailed: true})
	case DoFreeTaken:
		d.free(reclaim.PrefillHeld{Answered: true, Asked: true})
	case DoFreeOpen:
		d.freeOpen()
	case DoCountLeak:
		if d.conn.Traits().Stock != nil {
			d.reclaim.Start(d.job(), func(ctx context.Context) { d.reclaim.CountLeak(ctx, d.job(), d.From, reclaim.CauseNoAnswer) }, nil)
		}
		d.cancel()
	case DoDone:
		d.result = a.Result
	case DoDrop:
	}
}

// name has both engines' runs named in the hand-off, where they name each other, and signs the ticket.
func (d *driver) name() bool {
	if !d.From.Publishes {
		return true
	}
	var ok bool
	if d.h.Prefill, d.h.Decode, ok = d.s.Fleet.Incarnations(d.From, d.To); !ok {
		return false
	}
	d.h.ValidMS = d.s.Config.Migration.Timeout.Milliseconds()
	d.transfers.Sign(d.s.Tickets, &d.h, kvtransfer.ContextOf(d.c.model, "", d.c.salt))
	return true
}

// ask sends a leg of one token to an engine, on a goroutine of its own. then says what its end means.
func (d *driver) ask(l *leg.Leg, e *fleet.Engine, members []byte, then func(leg.Result) Event) {
	d.asked.Store(e)
	l.Join(d.cancels, e)
	l.Begin()
	req := &upstream.Request{
		Path: openai.PathCompletions, Header: l.Header(nil, d.h.Request, nil, false), Body: d.body(members), Once: d.conn.Traits().Stock != nil,
	}
	d.tasks.Go("a move", func() {
		event := Event{Kind: EvImportFailed, Why: Failed}
		if l == &d.export {
			event.Kind = EvExportBroken
		}
		state := dispatch.LegLost
		defer func() {
			l.Became(state)
			d.events <- event
			l.End()
		}()
		v := l.AskWhole(req, int(d.s.Config.Limits.Answer))
		l.ObserveProbe(d.s.Fleet, v)
		state, event = v.DecodeEvent(false).Kind.LegState(), then(v)
		if v != leg.Usable {
			d.log.Info("move: a leg failed", "engine", e.Name, "transfer_id", d.h.Transfer, "status", l.Status, "cause", l.Reason())
		}
	})
}

// body writes the request of either leg: the tokens that are moved, and an answer of one token, which nobody reads.
func (d *driver) body(members []byte) []byte {
	dst := append(make([]byte, 0, 256+7*len(d.IDs)+len(members)), `{"model":`...)
	dst = append(openai.AppendString(dst, d.c.asked), `,"prompt":[`...)
	for i, id := range d.IDs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	dst = append(dst, `],"max_tokens":1,"temperature":0,"ignore_eos":true,"stream":false,`...) // an answer that ends otherwise than by its length hands nothing off
	if d.c.salt != nil {
		dst = append(append(append(dst, `"cache_salt":`...), d.c.salt...), ',')
	}
	return append(append(dst, members...), '}')
}

// exported says what the end of the source's leg means.
func (d *driver) exported(v leg.Result) Event {
	switch {
	case v == leg.Refused, v == leg.Rejected:
		return Event{Kind: EvExportRefused, Why: Refused}
	case v == leg.Lost, v == leg.Late:
		return Event{Kind: EvExportLost, Why: Failed}
	case v != leg.Usable:
		return Event{Kind: EvExportBroken, Why: Failed}
	}
	kv := d.export.Answer.KVParams
	if d.From.Publishes {
		d.h.KVParams = kv
		if d.conn.Accept(&d.h, kv) == dispatch.EvPrefillUsable {
			return Event{Kind: EvExported}
		}
		return Event{Kind: EvExportUnusable, Why: NoHandOff}
	}
	if kv == nil {
		return Event{Kind: EvExportNone, Why: NoHandOff}
	}
	d.h.KVParams = append([]byte(nil), kv...)
	at, ok := connector.ParseEndpoint(kv)
	if d.h.Endpoint = at; !ok || d.conn.Accept(&d.h, kv) != dispatch.EvPrefillUsable {
		return Event{Kind: EvExportUnusable, Why: NoHandOff}
	}
	if said, _ := connector.ParseKVParams(kv); said.Handed.Groups > 1 {
		return Event{Kind: EvExportUnusable, Why: HybridCache}
	}
	return Event{Kind: EvExported}
}

// imported says what the end of the target's leg means.
func (d *driver) imported(v leg.Result) Event {
	switch {
	case v == leg.Usable:
		d.reclaim.Answered(d.s.Reclaim, d.To, d.read.Answer.KVParams)
		return Event{Kind: EvImported}
	case v == leg.Refused, d.read.Unsent():
		return Event{Kind: EvImportUnstarted, Why: Refused}
	}
	return Event{Kind: EvImportFailed, Why: Failed}
}

// job is what frees what the move may leave with the two engines.
func (d *driver) job() *reclaim.Job {
	m := reclaim.NewJob(d.s.Reclaim, &d.h, d.conn, d.c.model, d.From, d.To)
	m.Tokens, m.Pinned = len(d.IDs), d.Pin != nil
	return m
}

// free frees what the source keeps for the target, in the background. Engines of connector kvplane are told that the transfer is over.
func (d *driver) free(held reclaim.PrefillHeld) {
	if d.conn.Traits().Stock == nil {
		d.cancel()
		return
	}
	m := d.job()
	d.reclaim.Start(m, func(ctx context.Context) { d.reclaim.FreePrefill(ctx, m, held, reclaim.Certain) }, d.From)
}

// freeOpen ends the target's leg, which is open still.
func (d *driver) freeOpen() {
	m := d.job()
	if !d.conn.Traits().Writes {
		d.read.Cancel(leg.ErrEnded)
		d.read.WaitSent() // that it is over
		m.Closed = time.Now()
		d.free(reclaim.PrefillHeld{Answered: true, Asked: true})
		return
	}
	// The target may wait for what the source is to write: its leg is left open for the job, as it is for a handshake.
	m.FirstParams, m.Handoff.KVParams, m.Probe = m.Handoff.KVParams, nil, true
	if !d.read.State().Resolved() {
		m.OpenLeg, m.BegunInOrder = &d.read, true
	}
	see := func(ctx context.Context) { d.reclaim.FreeDecode(ctx, m) }
	if why := m.Snapshot.CannotNotify(d.To); why != reclaim.CauseNone {
		d.read.Cancel(leg.ErrEnded)
		see = func(ctx context.Context) {
			d.reclaim.CountLeak(ctx, m, d.To, why)
			d.reclaim.FreeFirstAnswer(ctx, m, reclaim.Possible)
		}
	}
	if !d.reclaim.Start(m, see, d.To) {
		d.read.Cancel(leg.ErrEnded)
	}
}

// cancel tells engines of connector kvplane that the transfer is over.
func (d *driver) cancel() {
	if d.conn.Traits().Cancels {
		d.transfers.Cancel(d.s.Config, d.s.Token, d.h.Transfer, reason.Deadline, d.From, d.To)
	}
}
