package router

import (
	"context"
	"sync"
	"time"
)

// longAgo is a deadline that ends what waits at once.
var longAgo = time.Unix(1, 0)

// leash is what one leg is held by: it ends whatever the leg is blocked on, for a cause.
// It is a context.Context, but the only one that an exchange with an engine needs neither goroutine nor memory for.
// Any goroutine may use it. The zero value holds.
type leash struct {
	mu    sync.Mutex
	cause error         // why it was cut; nil while it holds
	conn  *engineConn   // what the leg uses; nil between two exchanges
	done  chan struct{} // made for who asks, closed when it is cut
	timed bool          // conn has a read deadline

	set        *leashes // which it is in
	prev, next *leash
}

// cut ends what the leg is blocked on and all that follows. The first cause counts.
func (l *leash) cut(cause error) {
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return
	}
	l.cause = cause
	conn, done := l.conn, l.done
	l.mu.Unlock()
	if done != nil {
		close(done)
	}
	if conn != nil {
		conn.interrupt()
	}
}

// attach has c be interrupted when the leash is cut.
func (l *leash) attach(c *engineConn) {
	l.mu.Lock()
	l.conn = c
	cut := l.cause != nil
	l.mu.Unlock()
	if cut {
		c.interrupt()
	}
}

// wake has a read on the connection end at t with os.ErrDeadlineExceeded, if the leash holds; the zero time is never. Only who
// reads may call it.
func (l *leash) wake(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeLocked(t)
}

func (l *leash) wakeLocked(t time.Time) {
	if l.cause == nil && l.conn != nil {
		_ = l.conn.nc.SetReadDeadline(t)
		l.timed = !t.IsZero()
	}
}

// detach lets go of the connection, without the read deadline that it may have: the next request on it has its own. It reports
// false if the connection is, or may be, interrupted.
func (l *leash) detach() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timed {
		l.wakeLocked(time.Time{})
	}
	l.conn = nil
	return l.cause == nil
}

// why is the cause with which the leash was cut, nil if it holds.
func (l *leash) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Deadline, Done, Err and Value make it a context.Context; causeOf has the cause.
func (l *leash) Deadline() (time.Time, bool) { return time.Time{}, false }

func (l *leash) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.cause != nil {
			close(l.done)
		}
	}
	return l.done
}

func (l *leash) Err() error {
	if l.why() != nil {
		return context.Canceled
	}
	return nil
}

func (l *leash) Value(any) any { return nil }

// causeOf is context.Cause for leashes, too.
func causeOf(ctx context.Context) error {
	if l, ok := ctx.(*leash); ok {
		return l.why()
	}
	return context.Cause(ctx)
}

// leashes are those of all legs under way that belong to requests. The zero value is ready.
type leashes struct {
	mu    sync.Mutex
	head  *leash // doubly linked
	cause error  // once all were cut
}

func (s *leashes) add(l *leash) {
	s.mu.Lock()
	cause := s.cause
	l.set, l.next = s, s.head
	if s.head != nil {
		s.head.prev = l
	}
	s.head = l
	s.mu.Unlock()
	if cause != nil {
		l.cut(cause)
	}
}

// remove may be called for a leash that is in no set.
func (l *leash) remove() {
	s := l.set
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		s.head = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.set, l.prev, l.next = nil, nil, nil
}

// cut cuts all that there are and all that come.
func (s *leashes) cut(cause error) {
	s.mu.Lock()
	s.cause = cause
	var all []*leash
	for l := s.head; l != nil; l = l.next {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.cut(cause)
	}
}
