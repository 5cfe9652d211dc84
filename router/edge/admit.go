package edge

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"pdrouter/auth"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/fanout"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
)

// request is a request on its way to the engines, as far as it has come. What it holds is copied out of the server's
// buffers, but for the body: its bytes last as long as the handler.
type request struct {
	exchange.Request
	srv      *Edge
	snapshot *Snapshot // what it is read, checked and admitted by; ServedBy is what its exchange is served by
	route    *route
	who      auth.Principal
	name     string             // what stands in the path, where the route has a name in it
	ctype    string             // of a form
	query    string             // of the path, where it means something
	session  uint64             // as Request.Session, also where only the queue looks at it
	lease    Lease              // of the caller's limits; nil if there are none
	slot     admission.Slot     // its place with the engines
	x        *exchange.Exchange // once there is one
	fan      *fanout.Fan        // instead of x, where each choice is served by itself
}

// panicked ends a request whose handling panicked.
func (q *request) panicked(v any) {
	switch {
	case q.fan != nil:
		q.fan.Panicked(v)
	case q.x != nil:
		q.x.Panicked(v)
	default:
		q.release(exchange.UsedTokens{})
	}
}

// Begun implements exchange.Caller. The queue counts the request until then.
func (q *request) Begun() { q.slot.Begun() }

// Ended implements exchange.Caller. It releases what was taken for the request, also if this panics. The lease of a background response is
// held until that has ended.
func (q *request) Ended(x *exchange.Exchange) {
	var used exchange.UsedTokens
	defer func() { q.release(used) }()
	if q.Body.Unsplittable == openai.UnsplitStored {
		q.observeResponse(x)
	}
	if l, ok := q.lease.(*stored.Lease); ok && x.WorksOn() {
		id, e := x.Keeper()
		q.srv.Backgrounds.Hold(id, e, q.Forwarded, l)
		q.lease = nil
	}
	used = x.Used() // tokens, for the lease and the queue
}

// FanEnded releases what was taken for the request.
func (q *request) FanEnded(used exchange.UsedTokens) { q.release(used) }

// release gives back the request's place, and ends its lease of limits with what the request has used. It may be called twice.
func (q *request) release(used exchange.UsedTokens) {
	q.slot.Release(admission.Used{Computed: max(0, used.Prompt-used.Cached), Output: used.Answer, Unknown: used.Unknown}, time.Now()) // the next request that waits gets the place
	if lease := q.lease; lease != nil {
		q.lease = nil // also if Done panics: it is called once
		lease.Done(used.Total())
	}
}

// read finds what the request is about: the model that its body names. A stored response says of which model it is once it is
// found.
func (q *request) read(body []byte) (e *openai.Error) {
	if q.route.does == askStored {
		q.Body = openai.AskStored(q.route.method)
		return nil
	}
	if q.Body, e = q.parse(body); e != nil {
		return e
	}
	if q.Body.Model == "" {
		return openai.ErrBadRequest(reason.MissingModel, "model", "The field model is missing.")
	}
	if q.Model, q.Adapter = q.snapshot.Fleet.Find(q.Body.Model); q.Model == nil {
		e := openai.ErrNoModel(q.Body.Model)
		return ofCaller(e, q.who, e.Model)
	}
	return nil
}

// parse reads the body as the route has it.
func (q *request) parse(body []byte) (*openai.Body, *openai.Error) {
	switch q.route.does {
	case pass:
		return openai.ParsePassed(q.route.shape, body, q.snapshot.BodyLimits)
	case passForm:
		return openai.ParseForm(q.ctype, body, q.snapshot.BodyLimits)
	}
	return openai.ParseBody(q.route.shape, body, q.snapshot.BodyLimits)
}

// check reads the request, checks it, and takes the lease of its caller's limits. set sets headers of the answer, whatever that is. If check
// returns an error, the request holds nothing.
func (q *request) check(body *clientBody, set func(name, value string)) (e *openai.Error) {
	if e = q.read(body.bytes); e != nil {
		return e
	}
	q.Body.Memory = body
	if q.Model != nil {
		if e = q.permitted(); e != nil {
			return e
		}
	}
	if !body.charge(q.copies(), int(q.snapshot.Config.Limits.BodyMemory)) {
		return errBodyMemory()
	}
	if q.Body.Urgent = q.who.Has(ScopePriority); q.Body.Priority != 0 && !q.Body.Urgent {
		q.Body.Removed = true
	}
	if q.snapshot.Sealer != nil {
		q.Body.Sealed = q.snapshot.Sealer.Seal(q.who.Tenant, q.Body.Salt)
		if q.Body.Has(openai.OwnMediaID) {
			q.Body.MediaIDs = q.snapshot.Sealer.MediaIDs(q.who.Tenant)
		}
	}
	if limits := q.snapshot.Limiter; limits != nil {
		expected := expectedTokens(q.Body)
		if q.route.does == askStored {
			expected = ExpectedLookup
		}
		lease, allowed := limits.Acquire(q.who, expected) // nil, and nothing is over, if the caller has no limits
		allowed.setHeaders(set)
		if lease == nil && allowed.Over != "" {
			return ofCaller(errOverLimit(allowed), q.who, q.model())
		}
		q.lease = lease
		e = q.wrapBackgroundLease(allowed) // of requests without background: true it stays as it is
	}
	if e == nil {
		e = q.findStored(context.Background()) // does nothing unless the request names a stored response
	}
	if e != nil {
		q.release(exchange.UsedTokens{})
	}
	return e
}

// copies is at most how many bytes are copied of the body for both legs of each of its choices, while they are sent.
func (q *request) copies() int {
	if q.route.does == generate && q.Body.ServesChoicesApart(q.Model.Connector.Traits().RequiresSplit) {
		return 2 * min(q.Body.Choices(), q.snapshot.Config.Limits.MaxParallelChoices) * q.Body.Copies(true)
	}
	return 2 * q.Body.Copies(false)
}

// permitted checks whether the caller may name the model, and the model serve the request.
func (q *request) permitted() *openai.Error {
	if !q.who.Permits(q.Body.Model) {
		return ofCaller(openai.ErrForbidden(fmt.Errorf("may not name the model %s", q.Body.Model)), q.who, q.Model.Name)
	}
	if e := q.servable(); e != nil {
		return ofCaller(e, q.who, q.Model.Name)
	}
	return nil
}

// servable refuses bodies that neither two engines of the model can serve together nor one alone.
func (q *request) servable() *openai.Error {
	if !q.Model.Connector.Traits().RequiresSplit || q.route.does != generate {
		return nil
	}
	if q.Body.Shape != openai.ShapeCompletions && q.Body.Shape != openai.ShapeChat { // no room is put into them, nor by SGLang's own router
		return openai.ErrBadRequest(reason.BadField, "model", "The model `%s` is not served on %s.", openai.Clip(q.Body.Model, 256), q.route.path)
	}
	switch why := q.Body.Unsplittable; {
	case why == openai.UnsplitEcho, why == openai.UnsplitLogprobs, why == openai.UnsplitEmbedding, why == openai.UnsplitBestOf, why == openai.UnsplitBeam:
		return openai.ErrBadRequest(reason.BadField, "", "The model `%s` does not serve requests with %s.", openai.Clip(q.Body.Model, 256), why)
	case q.Body.Choices() > 1 && (q.Body.Choices() > q.snapshot.Config.Limits.MaxParallelChoices || !q.Body.ServesChoicesApart(true)):
		return openai.ErrBadRequest(reason.OverCap, "n", "The model `%s` does not serve so many choices with these parameters.", openai.Clip(q.Body.Model, 256))
	}
	return nil
}

// ofCaller adds to an error, for the log, who was refused which model.
func ofCaller(e *openai.Error, who auth.Principal, model string) *openai.Error {
	e.Subject, e.Tenant, e.Model = who.Subject, who.Tenant, model
	return e
}

// model is the name of the model, "" as long as it is not known.
func (q *request) model() string {
	if q.Model == nil {
		return ""
	}
	return q.Model.Name
}

// ScopePriority lets a caller say how urgent a request is, in X-Vllm-Priority or in the body.
const ScopePriority = "priority"

// admit gets a checked request a place with the model's engines, and so to an exchange. It may wait for one, on the goroutine of the client's
// connection. header is the client's X-Vllm-Priority. If admit returns an error, the request holds nothing any more.
func (srv *Edge) admit(q *request, conn net.Conn, header []byte) *openai.Error {
	// Only background: true has a stored.Lease.
	if l, ok := q.lease.(*stored.Lease); ok && !srv.Backgrounds.Reserve(l, q.snapshot.Config.Limits.Background) {
		q.release(exchange.UsedTokens{})
		return ofCaller(errTooManyBackground(), q.who, q.Model.Name)
	}
	g, r := q.Model.Queue, q.queued(header)
	var room *fleet.RoomFor
	if q.route.does == generate && q.Pin == nil { // it matters little to a request that only one engine may serve what others have to do
		if room = q.snapshot.Fleet.RoomFor(q.Model, q.Adapter, q.Body, q.who.Tenant); room != nil {
			defer room.End()
			r.Ready, q.Random = room.Ready, room.Random()
		}
	}
	var got admission.Result
	var w *admission.Waiter
	if s, ok := g.TryAcquire(r, time.Now()); ok {
		got.Slot = s
	} else if got, w = g.Enqueue(r, time.Now()); w != nil {
		q.Checked = time.Since(q.Arrived)
		longest, why := q.snapshot.Config.Timeouts.Queue, reason.QueueTimeout
		if room != nil {
			if wait, bounded := room.MaxWait(rand.Uint64()); bounded && wait < longest {
				longest, why = wait, reason.Objective
			}
		}
		late := time.AfterFunc(longest, func() { g.Drop(w, why, time.Now()) })
		watch, _ := srv.Disconnects.Watch(conn, func() { g.Drop(w, reason.ClientLeft, time.Now()) })
		select {
		case got = <-w.Done():
		case <-srv.closing: // also if no configuration has the queue's model any more
			g.Drop(w, reason.Shutdown, time.Now())
			got = <-w.Done()
		}
		late.Stop()
		watch.Stop()
		q.Queued = time.Since(q.Arrived)
		if got.Why == reason.None {
			q.Waited = new(got.Wait.String())
		}
	}
	if q.slot = got.Slot; got.Why == reason.None && srv.turnsAway() { // also of a place that came free as its request was ended at shutdown
		got.Why = reason.Shutdown
	}
	if got.Why == reason.None {
		return nil
	}
	q.release(exchange.UsedTokens{})
	e := openai.ErrQueue(got.Why, q.Model.Name)
	if got.Why == reason.QueueFull || got.Why == reason.QueueTimeout || got.Why == reason.Objective {
		after := got.Drain
		if room != nil && got.Why != reason.QueueFull { // it waited for room, not for an end
			after = room.In()
		}
		e.RetryAfter = admission.RetryAfter(after, q.snapshot.Config.Timeouts.Queue)
		e.Err = errors.New(got.Wait.String())
	}
	return ofCaller(e, q.who, q.Model.Name)
}

// queued is what the queue has to know of the request.
func (q *request) queued(header []byte) admission.Request {
	return admission.Request{
		Priority: q.standing(header), Arrived: q.Arrived, Tenant: q.who.Tenant, Weight: q.snapshot.Config.Queue.Weights[q.who.Tenant],
		Session: q.session, Prompt: q.Body.PromptTokens(),
	}
}

// standing is how urgent the request is: the more the sooner. Callers with the scope say so themselves, in the engines' way: the
// less the sooner; the head goes before the body.
func (q *request) standing(header []byte) int {
	p := q.snapshot.Config.Priorities[q.who.Tenant]
	if q.Body != nil && q.Body.Urgent {
		if q.Body.Priority != 0 {
			p = -q.Body.Priority
		}
		if n, err := strconv.Atoi(string(header)); err == nil {
			p = -n
		}
	}
	return min(max(p, -config.MaxPriority), config.MaxPriority)
}

// turnAway ends the wait of all requests in queues, and of later ones.
func (srv *Edge) turnAway() { srv.endWaits() }

// turnsAway reports whether turnAway was called.
func (srv *Edge) turnsAway() bool {
	select {
	case <-srv.closing:
		return true
	default:
		return false
	}
}
