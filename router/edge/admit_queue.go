package edge

import (
	"net"
	"strconv"
	"time"

	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
)

// ScopePriority lets a caller say how urgent a request is, in X-Vllm-Priority or in the body.
const ScopePriority = "priority"

// enter gets an admitted request a place with the model's engines. It may wait for one, on the goroutine of the client's connection.
// header is the client's X-Vllm-Priority. If enter returns an error, it has given back what the request held.
func (r *Edge) enter(q *request, conn net.Conn, header []byte) *openai.Error {
	if l, ok := q.lease.(*stored.Lease); ok && !r.Backgrounds.Admit(l, q.s.Config.Limits.Background) {
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
		watch, _ := r.Clients.Watch(conn, func() { g.Drop(w, reason.ClientLeft) })
		select {
		case got = <-w.Done():
		case <-r.closing: // also if no configuration has the queue's model any more
			g.Drop(w, reason.Shutdown)
			got = <-w.Done()
		}
		late.Stop()
		watch.Stop()
		q.Queued = time.Since(q.Arrived)
	}
	if q.slot = got.Slot; got.Why == reason.None && r.turnsAway() { // also of a place that came free as its request was ended at shutdown
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

// turnAway ends the wait of all who stand in queues, and of those who come.
func (r *Edge) turnAway() { r.close() }

// turnsAway reports whether turnAway was called.
func (r *Edge) turnsAway() bool {
	select {
	case <-r.closing:
		return true
	default:
		return false
	}
}
