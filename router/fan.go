package router

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"pdrouter/internal/disconnect"
	"pdrouter/policies"
	"pdrouter/router/admission"
	"pdrouter/router/dispatch"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/openai/choices"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
	"pdrouter/router/report"
)

// fan is one request for several choices, served by one exchange per choice, each with a hand-off of its own. It joins their
// answers: what they are and when they end is theirs. Nothing reaches the client before every choice has begun; the first
// that fails fails the request, and the others end as if their client had left.
type fan struct {
	r        *exchanges
	s        *exchangeSnapshot
	lease    Lease          // of the caller's limits; nil if there are none
	slot     admission.Slot // its place with the engines, until its end
	sum      report.Summary
	n        int // choices of each prompt
	stream   bool
	branches []*exchange // prompt by prompt
	watch    disconnect.Watch
	reply    reply // what the handler sends; no stream
	fanWriter

	mu     sync.Mutex
	turn   *sync.Cond // something below has changed
	merge  *choices.Merger
	ready  int           // branches that have begun, or answered
	bodies [][]byte      // what they answered, if they do not stream
	served []servedBy    // by whom, as far as it is known
	over   bool          // there is an outcome
	why    reason.Reason // of an outcome that is a failure
	open   int           // branches that have not ended, and the request itself
	out    []byte        // whole events that the client has not got
	from   int           // of out, the bytes that were read
	err    error         // what Read returns once out is empty
}

// servedBy names the engines of one branch.
type servedBy struct{ prefill, decode, reason string }

// fanRoom is how many bytes of events wait for a slow client before no more of any choice is read.
const fanRoom = 64 << 10

// newFan begins to serve a request as one per choice. It returns nil if that cannot be, or would not be split: then the
// body says for the planner why it is served whole.
func (r *exchanges) newFan(q *admitted) *fan {
	b, m := q.b, q.m
	if m.Connector.Traits().Mode == dispatch.Alone || q.route.does != generate || !b.ServesChoicesApart(m.Connector.Traits().RequiresSplit) {
		return nil
	}
	if b.Choices() > q.with.cfg.Limits.Fan {
		b.Unsplittable = openai.UnsplitFan
		return nil
	}
	if c := r.chooseOne(q); !c.Split {
		if c.Decode >= 0 {
			b.Unsplittable = string(c.Reason)
		}
		return nil
	}
	bodies := b.ChoiceBodies()
	if len(bodies) == 0 {
		return nil
	}
	f := &fan{r: r, s: q.with, lease: q.lease, n: b.N, stream: b.Stream, open: 1 + len(bodies), merge: choices.NewMerger(b.Prompts, b.N)}
	f.turn = sync.NewCond(&f.mu)
	f.Limit, f.every = q.with.cfg.Timeouts.Write, *q.with.cfg.Timeouts.KeepAlive
	f.served, f.bodies = make([]servedBy, len(bodies)), make([][]byte, len(bodies))
	for _, part := range bodies {
		one := q.request
		one.b, one.caller, one.branch = part, f, true
		f.branches = append(f.branches, r.newExchange(&one))
	}
	f.sum = f.branches[0].sum
	f.slot, q.fan, q.lease, q.slot = q.slot, f, nil, admission.Slot{}
	r.composed(1)
	return f
}

// chooseOne asks the planner for one choice of the body.
func (r *exchanges) chooseOne(q *admitted) policies.Choice {
	one := policies.Request{Model: q.m.Name, PromptTokens: q.b.PromptTokens() / q.b.Prompts}
	return q.with.fleet.DryRun(q.m, one)
}

// watchClient has the request end when its client leaves.
func (f *fan) watchClient(conn net.Conn) {
	f.watch, _ = f.r.clients.Watch(conn, func() { f.end(report.ClientLeft, reason.ClientLeft, reply{}) })
}

// run brings the request to its outcome, or to the point where its stream can be relayed.
func (f *fan) run() {
	for k, x := range f.branches {
		f.r.tasks.Go("a choice", func() { f.serve(k, x) })
	}
	f.mu.Lock()
	for !f.over && f.ready < len(f.branches) {
		f.turn.Wait()
	}
	over := f.over
	if !over && f.stream {
		f.sum.Status = 200
	}
	f.mu.Unlock()
	switch {
	case over:
	case f.stream:
		return
	default:
		f.whole()
	}
	f.closed()
}

// whole makes one answer of the branches'.
func (f *fan) whole() {
	body, ok := f.merge.Whole(f.bodies)
	if !ok {
		f.end(report.FailedBefore, reason.BadUpstream, reply{err: openai.ErrBadUpstream()})
		return
	}
	f.end(report.Completed, reason.None, reply{status: 200, ctype: "application/json", body: body})
}

// serve has one branch come to its end. It is the branch's owner.
func (f *fan) serve(k int, x *exchange) {
	defer func() {
		if v := recover(); v != nil {
			x.panicked(v)
			f.end(report.FailedBefore, reason.Panic, reply{err: openai.ErrInternal(nil)})
		}
	}()
	x.run()
	by := servedBy{x.sum.Prefill, x.sum.Decode, x.sum.Reason}
	switch {
	case !x.over:
		f.began(k, by, nil)
		f.pump(k, x)
	case x.reply.err == nil && x.reply.status == 200 && x.reply.stream == nil:
		f.began(k, by, x.reply.body)
	default:
		f.mu.Lock()
		f.served[k] = by
		f.mu.Unlock()
		rep := x.reply
		if rep.stream != nil || rep.err == nil && rep.status == 0 { // it ended before it began, for no reason of the client's
			rep = reply{err: openai.ErrBadUpstream()}
		}
		f.end(report.FailedBefore, cmp.Or(x.why, reason.BadUpstream), rep)
	}
}

// began notes that a branch streams, or has answered.
func (f *fan) began(k int, by servedBy, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.served[k], f.bodies[k] = by, body
	f.ready++
	f.turn.Broadcast()
}

// pump hands the events of a branch's stream to the merge, until either ends.
func (f *fan) pump(k int, x *exchange) {
	frames := sse.NewFrames(math.MaxInt) // the branch's stream has bounded its events
	var err error
	for err == nil {
		var b []byte
		b, err = x.nextEvents()
		if frames.Push(b) != nil {
			err = relay.ErrCut
		}
		for {
			event, ok := frames.Next()
			if !ok {
				break
			}
			if !f.take(k, x, event) {
				err = leg.ErrEnded
				break
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	_ = x.CloseWithError(err)
	f.mu.Lock()
	whole := f.merge.Parts[k].Done
	if !whole { // without an error event of its own
		f.failLocked(x, reason.StreamCut, false)
	}
	f.mu.Unlock()
	if !whole {
		f.leave()
	}
}

// take merges one event, once there is room. It reports false if nobody wants more.
func (f *fan) take(k int, x *exchange, event []byte) bool {
	f.mu.Lock()
	for !f.over && len(f.out)-f.from > fanRoom {
		f.turn.Wait()
	}
	if f.over {
		f.mu.Unlock()
		return false
	}
	var says choices.Outcome
	f.out, says = f.merge.Event(f.out, k, event)
	switch says { // at once: nothing may come behind an error event
	case choices.Finished:
		f.err = io.EOF
	case choices.Failed:
		f.failLocked(x, reason.DecodeFailed, true)
	case choices.Invalid:
		f.failLocked(x, reason.BadUpstream, false)
	}
	f.turn.Broadcast()
	f.mu.Unlock()
	if says == choices.Failed || says == choices.Invalid {
		f.leave()
		return false
	}
	return true
}

// failLocked settles the outcome by what came of a branch that had begun. told says that the client has its error event
// already. f.mu is held, and x is the caller's.
func (f *fan) failLocked(x *exchange, why reason.Reason, told bool) {
	if x.over && x.why != reason.None && x.sum.Outcome != report.Completed {
		why = x.why
	}
	e := x.reply.err // what the branch's stream was cut with
	if e == nil {
		e = openai.ErrBadUpstream()
		e.Reason = why
	}
	switch {
	case f.over:
	case f.sum.Status == 0: // others have not begun: there is no stream yet
		f.settleLocked(report.FailedBefore, why, reply{err: e})
	default:
		if !told {
			f.out = e.AppendFrame(f.out)
		}
		f.settleLocked(report.FailedAfter, why, reply{})
	}
}

// end settles the outcome and has every branch end in its connector's way. The first call counts.
func (f *fan) end(o report.Outcome, why reason.Reason, rep reply) {
	f.mu.Lock()
	if !f.over {
		f.settleLocked(o, why, rep)
	}
	f.mu.Unlock()
	if o != report.Completed {
		f.leave()
	}
}

// settleLocked notes the outcome. f.mu is held.
func (f *fan) settleLocked(o report.Outcome, why reason.Reason, rep reply) {
	f.over, f.reply = true, rep
	f.sum.Outcome = o
	if f.why, f.sum.Reason = why, why.String(); why == reason.None {
		f.sum.Reason = f.served[0].reason
	}
	switch {
	case f.sum.Status != 0:
	case rep.err != nil:
		f.sum.Status = rep.err.Status
	case rep.status != 0:
		f.sum.Status = rep.status
	case o == report.ClientLeft:
		f.sum.Status = 499
	}
	if f.err == nil {
		f.err = relay.ErrCut
	}
	f.turn.Broadcast()
}

// leave has the branches end: nobody waits for them. Those that have ended do not hear it.
func (f *fan) leave() {
	for _, x := range f.branches {
		x.cancel()
	}
}

// names joins the names of the engines of all branches, each once.
func (f *fan) names(of func(servedBy) string) string {
	var out []string
	have := map[string]bool{"": true}
	for _, s := range f.served {
		if name := of(s); !have[name] {
			have[name] = true
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// head tells the client who served it. It returns the reason, what is to be sent, and the stream, if there is one to be relayed:
// then a branch may settle the outcome at any moment, so that nothing of the fan may be read without its lock.
func (f *fan) head(set func(name, value string)) (why string, rep reply, s relayed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set("X-Pdrouter-Parts", strconv.Itoa(len(f.branches)))
	for name, of := range map[string]func(servedBy) string{
		"X-Pdrouter-Prefill": func(s servedBy) string { return s.prefill },
		"X-Pdrouter-Decode":  func(s servedBy) string { return s.decode },
	} {
		if names := f.names(of); names != "" {
			set(name, names)
		}
	}
	if f.stream && f.sum.Status == 200 {
		s = f
	}
	return f.served[0].reason, f.reply, s
}

// panicked ends the request in place of whoever panicked.
func (f *fan) panicked(v any) {
	f.r.log.Error("panic in a request", "request_id", f.sum.RequestID, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	f.end(report.FailedBefore, reason.Panic, reply{err: openai.ErrInternal(nil)})
	f.closed()
}
