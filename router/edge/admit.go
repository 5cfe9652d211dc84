package edge

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/fanout"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
)

// request is a request on its way to the engines, as far as it has come. What it holds is copied out of the server's
// buffers, but for the body: its bytes last as long as the handler.
type request struct {
	exchange.Request
	srv   *Edge
	s     *Snapshot
	route *route
	who   principal
	name  string             // what stands in the path, where the route has a name in it
	ctype string             // of a form
	query string             // of the path, where it means something
	lease Lease              // of the caller's limits; nil if there are none
	slot  admission.Slot     // its place with the engines
	x     *exchange.Exchange // once there is one
	fan   *fanout.Fan        // instead of x, where each choice is served by itself
}

// panicked gives back what the request holds.
func (q *request) panicked(v any) {
	switch {
	case q.fan != nil:
		q.fan.Panicked(v)
	case q.x != nil:
		q.x.Panicked(v)
	default:
		q.giveBack(exchange.UsedTokens{})
	}
}

// Ended gives back what was taken for the request, also if this panics. The lease of a background response is held until that has ended.
func (q *request) Ended(x *exchange.Exchange) {
	var used exchange.UsedTokens
	defer func() { q.giveBack(used) }()
	if q.Body.Unsplittable == openai.UnsplitStored {
		q.observeResponse(x)
	}
	if l, ok := q.lease.(*stored.Lease); ok && x.WorksOn() {
		id, e := x.Keeper()
		q.srv.Backgrounds.Hold(id, e, q.Forwarded, l)
		q.lease = nil
	}
	used = x.Used()
}

// FanEnded gives back what was taken for the request.
func (q *request) FanEnded(used exchange.UsedTokens) { q.giveBack(used) }

// giveBack gives back the request's place, and ends its lease with what it has used.
func (q *request) giveBack(used exchange.UsedTokens) {
	q.slot.Release()
	if q.lease != nil {
		q.lease.Done(used.Total())
		q.lease = nil
	}
}

// read finds what the request is about: the model that its body names. A stored response says of which model it is once it is
// found.
func (q *request) read(body []byte) (e *openai.Error) {
	if q.route.does == askStored {
		q.readStored()
		return nil
	}
	if q.Body, e = q.parse(body); e != nil {
		return e
	}
	if q.Body.Model == "" {
		return openai.ErrBadRequest(reason.MissingModel, "model", "The field model is missing.")
	}
	if q.Model, q.Adapter = q.s.Fleet.Find(q.Body.Model); q.Model == nil {
		e := openai.ErrNoModel(q.Body.Model)
		return ofCaller(e, q.who, e.Model)
	}
	return nil
}

// parse reads the body as the route has it.
func (q *request) parse(body []byte) (*openai.Body, *openai.Error) {
	switch q.route.does {
	case pass:
		return openai.ParsePassed(q.route.shape, body, q.s.Limits)
	case passForm:
		return openai.ParseForm(q.ctype, body, q.s.Limits)
	}
	return openai.ParseBody(q.route.shape, body, q.s.Limits)
}

// admit checks the request and the limits of its caller. set sets headers of the answer, whatever that is.
func (q *request) admit(body *clientBody, set func(name, value string)) (e *openai.Error) {
	if e = q.read(body.bytes); e != nil {
		return e
	}
	q.Body.Memory = body
	if q.Model != nil {
		if e = q.permitted(); e != nil {
			return e
		}
	}
	if !body.charge(q.copies(), int(q.s.Config.Limits.BodyMemory)) {
		return errBodyMemory()
	}
	if q.Body.Urgent = q.who.Has(ScopePriority); q.Body.Priority != 0 && !q.Body.Urgent {
		q.Body.Removed = true
	}
	if q.s.Sealer != nil {
		q.Body.Sealed = q.s.Sealer.Seal(q.who.Tenant, q.Body.Salt)
		if q.Body.Has(openai.OwnMediaID) {
			q.Body.MediaIDs = q.s.Sealer.MediaIDs(q.who.Tenant)
		}
	}
	if limits := q.s.Limiter; limits != nil {
		expected := expectedTokens(q.Body)
		if q.route.does == askStored {
			expected = ExpectedLookup
		}
		lease, allowed := limits.Admit(q.who, expected)
		allowed.setHeaders(set)
		if lease == nil && allowed.Over != "" {
			return ofCaller(errOverLimit(allowed), q.who, q.model())
		}
		q.lease = lease
		e = q.holdLease(allowed)
	}
	if e == nil {
		e = q.findStored(context.Background())
	}
	if e != nil {
		q.giveBack(exchange.UsedTokens{})
	}
	return e
}

// copies is at most how many bytes are copied of the body for both legs of each of its choices, while they are sent.
func (q *request) copies() int {
	if q.route.does == generate && q.Body.ServesChoicesApart(q.Model.Connector.Traits().RequiresSplit) {
		return 2 * min(q.Body.Choices(), q.s.Config.Limits.MaxParallelChoices) * q.Body.Copies(true)
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

// model is the name of the model, "" as long as it is not known.
func (q *request) model() string {
	if q.Model == nil {
		return ""
	}
	return q.Model.Name
}

// ScopePriority lets a caller say how urgent a request is, in X-Vllm-Priority or in the body.
const ScopePriority = "priority"

// enter gets an admitted request a place with the model's engines. It may wait for one, on the goroutine of the client's connection.
// header is the client's X-Vllm-Priority. If enter returns an error, it has given back what the request held.
func (srv *Edge) enter(q *request, conn net.Conn, header []byte) *openai.Error {
	if l, ok := q.lease.(*stored.Lease); ok && !srv.Backgrounds.Admit(l, q.s.Config.Limits.Background) {
		q.giveBack(exchange.UsedTokens{})
		return ofCaller(errTooManyBackground(), q.who, q.Model.Name)
	}
	g := q.Model.Queue
	var got admission.Result
	var w *admission.Waiter
	if s, ok := g.TryAcquire(); ok {
		got.Slot = s
	} else if got, w = g.Enqueue(q.standing(header), q.Arrived); w != nil {
		q.Checked = time.Since(q.Arrived)
		late := time.AfterFunc(q.s.Config.Timeouts.Queue, func() { g.Drop(w, reason.QueueTimeout) })
		watch, _ := srv.Disconnects.Watch(conn, func() { g.Drop(w, reason.ClientLeft) })
		select {
		case got = <-w.Done():
		case <-srv.closing: // also if no configuration has the queue's model any more
			g.Drop(w, reason.Shutdown)
			got = <-w.Done()
		}
		late.Stop()
		watch.Stop()
		q.Queued = time.Since(q.Arrived)
	}
	if q.slot = got.Slot; got.Why == reason.None && srv.turnsAway() { // also of a place that came free as its request was ended at shutdown
		got.Why = reason.Shutdown
	}
	if got.Why == reason.None {
		return nil
	}
	q.giveBack(exchange.UsedTokens{})
	return ofCaller(openai.ErrQueue(got.Why, q.Model.Name), q.who, q.Model.Name)
}

// standing is how urgent the request is: the more the sooner. Callers with the scope say so themselves, in the engines' way: the
// less the sooner; the head goes before the body.
func (q *request) standing(header []byte) int {
	p := q.s.Config.Priorities[q.who.Tenant]
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
func (srv *Edge) turnAway() { srv.close() }

// turnsAway reports whether turnAway was called.
func (srv *Edge) turnsAway() bool {
	select {
	case <-srv.closing:
		return true
	default:
		return false
	}
}
