package exchange

import (
	"errors"
	"sync"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/dispatch"
	"pdrouter/router/upstream"
)

var errInterrupted = errors.New("interrupted")

// envelope is an event from another goroutine. a is the attempt that it belongs to, nil if it belongs to the request.
type envelope struct {
	a  *attempt
	e  dispatch.Event
	at time.Time
}

// mailbox holds the events that legs, timers and the client have for the owner of an exchange. It is safe for concurrent use.
//
// An event of a decode leg comes with its attempt. Once it is accepted, the owner must end that leg. If it is not accepted, its sender
// ends the leg.
type mailbox struct {
	wake chan struct{} // has room for one: something is here

	mu        sync.Mutex
	accepts   accepted
	current   *attempt           // the only attempt whose events are accepted
	items     []envelope         // oldest first
	interrupt *upstream.Canceler // of what the owner is blocked on; nil if it is not
	room      [3]envelope
}

// accepted says which events a mailbox accepts.
type accepted uint8

const (
	acceptsAll  accepted = iota
	acceptsLegs          // the request has its outcome; its legs are not over
	acceptsNone
)

func (b *mailbox) init() { b.wake, b.items = make(chan struct{}, 1), b.room[:0] }

// deliver puts an event into the mailbox. It reports whether the event is accepted. One that belongs to the request also interrupts what the owner is blocked on.
func (b *mailbox) deliver(m envelope) bool {
	b.mu.Lock()
	if b.accepts == acceptsNone || b.accepts == acceptsLegs && m.a == nil || m.a != nil && m.a != b.current {
		b.mu.Unlock()
		return false
	}
	b.items = append(b.items, m)
	interrupt := b.interrupt
	b.mu.Unlock()
	if interrupt != nil && m.a == nil {
		interrupt.Cancel(errInterrupted)
	}
	background.Notify(b.wake)
	return true
}

// take returns the oldest event.
func (b *mailbox) take() (envelope, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) == 0 {
		return envelope{}, false
	}
	m := b.items[0]
	b.items = append(b.items[:0], b.items[1:]...)
	return m, true
}

// acceptOnly accepts the events of a, and no more those of the attempt before it. It ends the decode leg of that, if it is here.
func (b *mailbox) acceptOnly(a *attempt) { b.restrict(acceptsAll, a) }

// restrict accepts less from now on, and drops what is here and is not accepted any more.
func (b *mailbox) restrict(accepts accepted, current *attempt) {
	var dropped *attempt
	b.mu.Lock()
	b.accepts, b.current = accepts, current
	keep := b.items[:0]
	for _, m := range b.items {
		switch {
		case accepts != acceptsNone && m.a != nil && m.a == current, accepts == acceptsAll && m.a == nil:
			keep = append(keep, m)
		case m.a != nil && m.e.Kind.OfDecode():
			dropped = m.a
		}
	}
	b.items = keep
	b.mu.Unlock()
	if dropped != nil {
		dropped.release()
	}
}

// attempt returns the attempt whose events are accepted, nil if there is none. What of it may be read from other goroutines its fields say.
func (b *mailbox) attempt() *attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// armInterrupt notes how to interrupt the owner, which is about to block. It reports false if there is an event to handle first.
func (b *mailbox) armInterrupt(interrupt *upstream.Canceler) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) > 0 {
		return false
	}
	b.interrupt = interrupt
	return true
}

func (b *mailbox) disarmInterrupt() {
	b.mu.Lock()
	b.interrupt = nil
	b.mu.Unlock()
}
