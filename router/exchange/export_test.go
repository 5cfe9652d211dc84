package exchange

import (
	"context"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/admission"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
	"pdrouter/router/report"
)

// Debug is what the external tests of exchanges see of them beside their interface. Its model is tiny.
type Debug struct {
	r *Exchanges
	s *Snapshot
}

// NewDebug returns the debug of what a router serves requests with.
func NewDebug(r *Exchanges, s *Snapshot) Debug { return Debug{r, s} }

// PrefillAnswered reports whether the prefill leg of some request has its answer.
func (d Debug) PrefillAnswered() bool {
	live := &d.r.live
	live.mu.Lock()
	defer live.mu.Unlock()
	for _, x := range live.items {
		x.mu.Lock()
		a := x.current
		x.mu.Unlock()
		if a != nil && a.prefillAnswered() {
			return true
		}
	}
	return false
}

// EndBehindPrefill has a request end as its prefill leg is answered, and waits until that is over.
func (d Debug) EndBehindPrefill(ctx context.Context, body string) {
	r, m := d.r, d.s.Fleet.Models["tiny"]
	b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
	if herr != nil {
		panic(herr)
	}
	x := r.Begin(&Request{ServedBy: d.s, Path: openai.PathCompletions, Model: m, Body: b, Arrived: time.Now()})
	defer x.deadlineTimer.Stop()
	defer r.live.remove(x)
	a := &attempt{split: true}
	a.prefill.Open(ctx, m.Prefill[0])
	a.decode.Open(ctx, m.Decode[0])
	x.cur = a
	x.acceptOnly(a)
	x.deliver(envelope{a: a, e: dispatch.Event{Kind: dispatch.EvPrefillUsable}})
	x.closePrefill(a)
	a.prefill.End()
	a.decode.End()
	r.Tasks.Wait()
}

// PanicInTheEnd has a request that is in that state of its dispatch end by an event, and what tells its client of it panic. It returns
// what the client is told; again is another panic.
func (d Debug) PanicInTheEnd(body string, in dispatch.State, kind dispatch.EventKind, of Caller) (told *openai.Error, again func()) {
	r := d.r
	were := d.s.Fleet.Models["tiny"]
	m := &fleet.Model{Name: were.Name, Connector: were.Connector, Decode: were.Decode, Retries: new(admission.RetryBudget)}
	b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
	if herr != nil {
		panic(herr)
	}
	x := r.Begin(&Request{ServedBy: d.s, Model: m, Body: b, Arrived: time.Now(), Caller: of})
	a := &attempt{split: true}
	a.decode.Join(r.Cancels, were.Decode[0])
	a.prefill.Join(r.Cancels, were.Prefill[0])
	x.cur, x.d.State, x.d.Mode, x.d.Prefill, x.Sum.Attempts = a, in, dispatch.InTurn, dispatch.LegAsked, 1
	m.Retries = nil // it is asked whether the client may try again, and panics
	x.acceptOnly(a)
	x.deliver(envelope{e: dispatch.Event{Kind: kind, Why: reason.Deadline}})
	x.Run()
	a.prefill.End()
	return x.Reply.Err, func() { x.Panicked("once more") }
}

// Owned is a request whose owner is the test: it takes each step itself.
type Owned struct {
	*Exchange
	body *openai.Body
}

// Own admits a request for model tiny.
func (d Debug) Own(body string) Owned {
	b, herr := openai.ParseBody(openai.ShapeCompletions, []byte(body), openai.Limits{})
	if herr != nil {
		panic(herr)
	}
	return Owned{d.r.Begin(&Request{ServedBy: d.s, Model: d.s.Fleet.Models["tiny"], Body: b, Path: openai.PathCompletions, Arrived: time.Now()}), b}
}

func (o Owned) Step(e dispatch.Event)    { o.step(e) }
func (o Owned) Deliver(e dispatch.Event) { o.deliver(envelope{e: e}) }
func (o Owned) Streams() bool            { return o.Reply.Stream != nil }
func (o Owned) SeenEnd() bool            { return o.Reply.Stream.Whole() }
func (o Owned) Refused() *openai.Error   { return o.Reply.Err }
func (o Owned) Answer() []byte           { return o.Reply.Body }
func (o Owned) Summary() *report.Summary { return &o.Sum }
func (o Owned) Release()                 { o.body.Release() }

func (o Owned) Ended() bool        { return o.HasOutcome }
func (o Owned) Drains() bool       { return o.drains }
func (o Owned) DecodeCause() error { return o.cur.decode.Cause() }
func (o Owned) HasBuffers() bool   { return o.Reply.Stream.HasBuffers() }
func (o Owned) AwaitWake()         { <-o.wake }
func (o Owned) Wake()              { background.Notify(o.wake) }

// SpoilAttempt and SpoilTimer have what reads these panic. What CleanUp returned before ends what they had begun, and the request.
func (o Owned) SpoilAttempt() { o.cur = nil }
func (o Owned) SpoilTimer()   { o.deadlineTimer = nil }
func (o Owned) CleanUp() func() {
	a, timer := o.cur, o.deadlineTimer
	return func() {
		timer.Stop()
		a.letGo()
		if o.all.live.len() != 0 { // what panics as it is told
			o.all.live.remove(o.Exchange)
		}
	}
}

// AnswerAtTransferTime has decode answer when the time of a transfer is nearly over, and returns why its leg was ended, if it was.
func (o Owned) AnswerAtTransferTime() error {
	a := &attempt{split: true}
	a.decode.Join(o.all.Cancels, o.m.Decode[0])
	o.expect(a)
	defer a.letGo()
	a.decode.Begin()
	time.Sleep(o.s.Config.Timeouts.Transfer - 1)
	a.decode.SetKV(leg.KVDone)
	a.decode.Became(dispatch.LegAnswered)
	time.Sleep(time.Second)
	return a.decode.Cause()
}

// UnreadTokens has decode's answer be too large: how many tokens of it are unread while the leg is asked, and when it is over.
func (o Owned) UnreadTokens() (asked, over int) {
	o.b.Shape, o.b.MaxTokens = openai.ShapeChat, -1
	a := new(attempt)
	a.decode.Join(o.all.Cancels, o.m.Decode[0])
	a.decode.Begin()
	o.cur, o.Why = a, reason.AnswerTooLarge
	a.decode.Failure = sse.ErrTooLarge
	asked = o.unreadTokens()
	a.decode.Became(dispatch.LegWhole)
	return asked, o.unreadTokens()
}

// Finished reports whether there is nothing more to do but to close the stream, if it is one.
func (o Owned) Finished() bool {
	return o.HasOutcome || o.Streams() && o.Reply.Stream.Err() != nil
}

// Advance takes one step, and returns what it has brought of a stream.
func (o Owned) Advance() (events []byte) {
	o.advance()
	if out := o.Reply.Stream; out != nil {
		events = append(events, out.TakeOut()...)
	}
	return events
}
