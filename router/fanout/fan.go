// Package fanout serves one request for several choices as one exchange per choice, each with prefill, hand-off and decode of its own, and
// merges their answers into one (package openai/choices does the merging). It owns when the whole begins, fails and ends; how a choice is
// served is the exchange's. The edge begins it in place of an exchange.
package fanout

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
	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/openai/choices"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
	"pdrouter/router/report"
	"pdrouter/router/trace"
)

// Caller begins a Fan.
type Caller interface {
	// Begun is called for each choice as exchange.Caller has it, also at the same time.
	Begun()
	// FanEnded is called once, when nothing of the request is under way any more.
	FanEnded(used exchange.UsedTokens)
}

// Fan is one request for several choices, served by one exchange per choice, each with a hand-off of its own. It joins their
// answers: what they are and when they end is theirs. Nothing reaches the client before every choice has begun; the first
// that fails fails the request, and the others end as if their client had left.
type Fan struct {
	r           *exchange.Exchanges
	s           *exchange.Snapshot
	caller      Caller
	trace       *trace.Trace // nil if the request is not sampled
	sum         report.Summary
	n           int // choices of each prompt
	stream      bool
	unbounded   bool                 // the body has no limit of its answers
	branches    []*exchange.Exchange // prompt by prompt
	clientWatch disconnect.Watch
	reply       exchange.Reply // what the handler sends; no stream
	writer

	mu      sync.Mutex
	changed *sync.Cond // something below has changed
	merge   *choices.Merger
	ready   int             // branches that have begun, or answered
	bodies  [][]byte        // what they answered, if they do not stream
	engines []branchEngines // by whom, as far as it is known
	over    bool            // there is an outcome
	why     reason.Reason   // of an outcome that is a failure
	open    int             // branches that have not ended, and the request itself
	out     []byte          // whole events that the client has not got
	from    int             // of out, the bytes that were read
	err     error           // what Read returns once out is empty
}

// branchEngines names the engines of one branch.
type branchEngines struct{ prefill, decode, reason string }

// room is how many bytes of events wait for a slow client before no more of any choice is read.
const room = 64 << 10

// Begin begins to serve a request as one per choice. It returns nil if that cannot be, or would not be split: then the
// body says for the planner why it is served whole.
func Begin(r *exchange.Exchanges, q *exchange.Request, of Caller) *Fan {
	b := q.Body
	if !Apart(q.ServedBy.Fleet, q.Model, b, q.ServedBy.Config.Limits.MaxParallelChoices) {
		return nil
	}
	bodies := b.ChoiceBodies()
	if len(bodies) == 0 {
		return nil
	}
	f := &Fan{r: r, s: q.ServedBy, caller: of, trace: q.Forwarded.Traced(), n: b.N, stream: b.Stream, unbounded: b.Unbounded(), open: 1 + len(bodies), merge: choices.NewMerger(b.Prompts, b.N)}
	f.changed = sync.NewCond(&f.mu)
	f.Limit, f.every = q.ServedBy.Config.Timeouts.Write, *q.ServedBy.Config.Timeouts.KeepAlive
	f.engines, f.bodies = make([]branchEngines, len(bodies)), make([][]byte, len(bodies))
	for i, part := range bodies {
		one := *q
		if i > 0 {
			one.Random = 0 // room was found for the first
		}
		one.Body, one.Caller, one.Branch = part, f, true
		f.branches = append(f.branches, r.Begin(&one))
	}
	f.sum = f.branches[0].Sum
	r.Composed(1)
	return f
}

// Apart reports whether a request with this body is served as one per choice, of which there are at most so many. It asks the planner for one
// of them. If it returns false, the body says for the planner why it is served whole.
func Apart(f *fleet.Fleet, m *fleet.Model, b *openai.Body, most int) bool {
	if m.Connector.Traits().Mode == dispatch.Alone || !b.ServesChoicesApart(m.Connector.Traits().RequiresSplit) {
		return false
	}
	if b.Choices() > most {
		b.Unsplittable = openai.UnsplitFan
		return false
	}
	c := f.DryRun(m, policies.Request{Model: m.Name, PromptTokens: b.PromptTokens() / b.Prompts})
	if !c.Split && c.Decode >= 0 {
		b.Unsplittable = string(c.Reason)
	}
	return c.Split
}

// WatchClient has the request end when its client leaves.
func (f *Fan) WatchClient(conn net.Conn) {
	f.clientWatch, _ = f.r.Disconnects.Watch(conn, func() { f.end(dispatch.ClientLeft, reason.ClientLeft, exchange.Reply{}) })
}

// Run serves the request to its outcome, or until its stream can be relayed.
func (f *Fan) Run() {
	for k, x := range f.branches {
		f.r.Tasks.Go("a choice", func() { f.serve(k, x) })
	}
	f.mu.Lock()
	for !f.over && f.ready < len(f.branches) {
		f.changed.Wait()
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
func (f *Fan) whole() {
	body, ok := f.merge.Whole(f.bodies)
	if !ok {
		f.end(dispatch.FailedBefore, reason.BadUpstream, exchange.Reply{Err: openai.ErrBadUpstream()})
		return
	}
	f.end(dispatch.Completed, reason.None, exchange.Reply{Status: 200, ContentType: "application/json", Body: body})
}

// serve serves one branch to its end. It owns the branch.
func (f *Fan) serve(k int, x *exchange.Exchange) {
	defer func() {
		if v := recover(); v != nil {
			x.Panicked(v)
			f.fail(reason.Panic, openai.ErrInternal(nil))
		}
	}()
	x.Run()
	by := branchEngines{x.Sum.Prefill, x.Sum.Decode, x.Sum.Reason}
	switch {
	case !x.HasOutcome:
		f.began(k, by, nil)
		f.pump(k, x)
	case x.Reply.Err == nil && x.Reply.Status == 200 && x.Reply.Stream == nil:
		f.began(k, by, x.Reply.Body)
	default:
		f.mu.Lock()
		f.engines[k] = by
		f.mu.Unlock()
		rep := x.Reply
		if rep.Stream != nil || rep.Err == nil && rep.Status == 0 { // it ended before it began, for no reason of the client's
			rep = exchange.Reply{Err: openai.ErrBadUpstream()}
		}
		f.end(dispatch.FailedBefore, cmp.Or(x.Why, reason.BadUpstream), rep)
	}
}

// began notes that a branch streams, or has answered.
func (f *Fan) began(k int, by branchEngines, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.engines[k], f.bodies[k] = by, body
	f.ready++
	f.changed.Broadcast()
}

// pump hands the events of a branch's stream to the merge, until either ends.
func (f *Fan) pump(k int, x *exchange.Exchange) {
	frames := sse.NewFrames(math.MaxInt) // the branch's stream has bounded its events
	var err error
	for err == nil {
		var b []byte
		b, err = x.NextEvents()
		if frames.Push(b) != nil {
			err = relay.ErrCut
		}
		for {
			event, ok := frames.Next()
			if !ok {
				break
			}
			if !f.add(k, x, event) {
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

// add merges one event, once there is room. It reports false if no more is wanted.
func (f *Fan) add(k int, x *exchange.Exchange, event []byte) bool {
	says, wanted := f.join(k, x, event)
	if says == choices.Failed || says == choices.Invalid {
		f.leave()
		return false
	}
	return wanted
}

// join is add without the end of the other branches. It reports false if there is an outcome already. A panic leaves f.mu unlocked: the
// request's end needs it.
func (f *Fan) join(k int, x *exchange.Exchange, event []byte) (says choices.Outcome, wanted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.over && len(f.out)-f.from > room {
		f.changed.Wait()
	}
	if f.over {
		return choices.Continues, false
	}
	f.out, says = f.merge.Event(f.out, k, event)
	switch says { // at once: nothing may follow an error event
	case choices.Finished:
		f.err = io.EOF
	case choices.Failed:
		f.failLocked(x, reason.DecodeFailed, true)
	case choices.Invalid:
		f.failLocked(x, reason.BadUpstream, false)
	}
	f.changed.Broadcast()
	return says, true
}

// failLocked settles the outcome by what came of a branch that had begun. sent says that the client has its error event already. f.mu is
// held, and the caller owns x.
func (f *Fan) failLocked(x *exchange.Exchange, why reason.Reason, sent bool) {
	if x.HasOutcome && x.Why != reason.None && x.Sum.Outcome != dispatch.Completed {
		why = x.Why
	}
	e := x.Reply.Err // what the branch's stream was cut with
	if e == nil {
		e = openai.ErrBadUpstream()
		e.Reason = why
	}
	f.failWithLocked(why, e, sent)
}

// fail settles the outcome by an error, and has every branch end.
func (f *Fan) fail(why reason.Reason, e *openai.Error) {
	f.mu.Lock()
	f.failWithLocked(why, e, false)
	f.mu.Unlock()
	f.leave()
}

// failWithLocked settles the outcome by an error: the client gets it as the answer, or within the stream that it has. sent says that it
// has an error event already. f.mu is held.
func (f *Fan) failWithLocked(why reason.Reason, e *openai.Error, sent bool) {
	switch {
	case f.over:
	case f.sum.Status == 0: // others have not begun: there is no stream yet
		f.settleLocked(dispatch.FailedBefore, why, exchange.Reply{Err: e})
	default:
		if !sent {
			f.out = e.AppendFrame(f.out)
		}
		f.settleLocked(dispatch.FailedAfter, why, exchange.Reply{})
	}
}

// end settles the outcome and has every branch end in its connector's way. The first call counts.
func (f *Fan) end(o dispatch.Outcome, why reason.Reason, rep exchange.Reply) {
	f.mu.Lock()
	if !f.over {
		f.settleLocked(o, why, rep)
	}
	f.mu.Unlock()
	if o != dispatch.Completed {
		f.leave()
	}
}

// settleLocked notes the outcome. f.mu is held.
func (f *Fan) settleLocked(o dispatch.Outcome, why reason.Reason, rep exchange.Reply) {
	f.over, f.reply = true, rep
	f.sum.Outcome = o
	if f.why, f.sum.Reason = why, why.String(); why == reason.None {
		f.sum.Reason = f.engines[0].reason
	}
	switch {
	case f.sum.Status != 0:
	case rep.Err != nil:
		f.sum.Status = int32(rep.Err.Status)
	case rep.Status != 0:
		f.sum.Status = int32(rep.Status)
	case o == dispatch.ClientLeft:
		f.sum.Status = 499
	}
	if f.err == nil {
		f.err = relay.ErrCut
	}
	f.changed.Broadcast()
}

// leave ends the branches, as their client has left. Those that have ended ignore it.
func (f *Fan) leave() {
	for _, x := range f.branches {
		x.Cancel()
	}
}

// names joins the names of the engines of all branches, each once.
func (f *Fan) names(of func(branchEngines) string) string {
	var out []string
	have := map[string]bool{"": true}
	for _, s := range f.engines {
		if name := of(s); !have[name] {
			have[name] = true
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// Head tells the client who served it. It returns the reason, what to send, and whether that is the fan itself, as a stream:
// then a branch may settle the outcome at any moment, so that nothing of the fan may be read without its lock.
func (f *Fan) Head(set func(name, value string)) (why string, rep exchange.Reply, streams bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set("X-Pdrouter-Parts", strconv.Itoa(len(f.branches)))
	for name, of := range map[string]func(branchEngines) string{
		"X-Pdrouter-Prefill": func(s branchEngines) string { return s.prefill },
		"X-Pdrouter-Decode":  func(s branchEngines) string { return s.decode },
	} {
		if names := f.names(of); names != "" {
			set(name, names)
		}
	}
	streams = f.stream && f.sum.Status == 200
	if why = f.engines[0].reason; f.over && !streams { // which a branch that was ended for it does not know
		why = f.sum.Reason
	}
	return why, f.reply, streams
}

// Panicked ends the request after a panic.
func (f *Fan) Panicked(v any) {
	f.r.Log.Error("panic in a request", "request_id", f.sum.RequestID, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	f.end(dispatch.FailedBefore, reason.Panic, exchange.Reply{Err: openai.ErrInternal(nil)})
	f.closed()
}
