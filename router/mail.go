package router

import (
	"slices"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/upstream"
)

// mail is an event from another goroutine. a is the attempt that it belongs to, nil if it belongs to the request.
type mail struct {
	a  *attempt
	e  dispatch.Event
	at time.Time
}

// post hands an event to the owner. An event that belongs to no leg also interrupts what the owner is blocked on.
func (x *exchange) post(m mail) {
	x.mu.Lock()
	if x.heir != nil && m.a == x.heir.a {
		x.heir.told <- m.e
		x.mu.Unlock()
		return
	}
	if x.over || m.a != nil && m.a != x.cur { // what an earlier attempt still says must not end this one
		x.mu.Unlock()
		return
	}
	x.mails = append(x.mails, m)
	interrupt := x.interrupt
	x.mu.Unlock()
	if interrupt != nil && m.a == nil {
		interrupt.Cancel(errInterrupted)
	}
	rouse(x.wake)
}

// rouse wakes whoever waits on a channel that has room for one, now or when he comes to wait. It never blocks.
func rouse(sleeper chan<- struct{}) {
	select {
	case sleeper <- struct{}{}:
	default:
	}
}

// mailLocked takes the oldest event.
func (x *exchange) mailLocked() (mail, bool) {
	if len(x.mails) == 0 {
		return mail{}, false
	}
	m := x.mails[0]
	x.mails = append(x.mails[:0], x.mails[1:]...)
	return m, true
}

// dropOld keeps the events that belong to no attempt.
func dropOld(mails []mail) []mail {
	return slices.DeleteFunc(mails, func(m mail) bool { return m.a != nil })
}

// block notes how to interrupt the owner, unless there is mail.
func (x *exchange) block(interrupt *upstream.Canceler) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.mails) > 0 {
		return false
	}
	x.interrupt = interrupt
	return true
}

// unblock reports whether there is mail.
func (x *exchange) unblock() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.interrupt = nil
	return len(x.mails) > 0
}

// nextEvent waits for the next event before the gate.
func (x *exchange) nextEvent() dispatch.Event {
	if len(x.queue) > 0 {
		e := x.queue[0]
		x.queue = append(x.queue[:0], x.queue[1:]...)
		return e
	}
	for {
		x.mu.Lock()
		m, ok := x.mailLocked()
		x.mu.Unlock()
		switch a := x.cur; {
		case ok:
			return x.took(m)
		case x.d.State == dispatch.StWaiting:
			x.rest()
		case a != nil && a.parked:
			x.park(a)
		default:
			<-x.wake
		}
	}
}
