package upstream

import (
	"context"
	"sync"
	"time"
)

// longAgo is a deadline that ends every wait at once.
var longAgo = time.Unix(1, 0)

// Canceler cancels the requests of one leg with a cause, whatever they are blocked on. It is a context.Context, and the only one that a
// request needs neither a goroutine nor memory for. It is safe for concurrent use. The zero value is ready and not canceled.
type Canceler struct {
	mu    sync.Mutex
	cause error         // nil until it is canceled
	conn  *conn         // what the leg uses; nil between two requests
	done  chan struct{} // made by the first call of Done, closed by Cancel
	timed bool          // conn has a read deadline

	set        *CancelSet // nil if it is in none
	prev, next *Canceler
}

// Cancel ends what the leg is blocked on and every later request. The first cause counts.
func (l *Canceler) Cancel(cause error) {
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

// attach makes Cancel interrupt c.
func (l *Canceler) attach(c *conn) {
	l.mu.Lock()
	l.conn = c
	canceled := l.cause != nil
	l.mu.Unlock()
	if canceled {
		c.interrupt()
	}
}

// SetReadDeadline ends reads on the connection at t with os.ErrDeadlineExceeded, unless the Canceler is canceled. The zero time means
// no deadline. Only the goroutine that reads may call it.
func (l *Canceler) SetReadDeadline(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setReadDeadlineLocked(t)
}

func (l *Canceler) setReadDeadlineLocked(t time.Time) {
	if l.cause == nil && l.conn != nil {
		_ = l.conn.nc.SetReadDeadline(t)
		l.timed = !t.IsZero()
	}
}

// detach releases the connection and removes its read deadline: the next request on it has its own. It reports false if the
// connection is, or may be, interrupted.
func (l *Canceler) detach() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timed {
		l.setReadDeadlineLocked(time.Time{})
	}
	l.conn = nil
	return l.cause == nil
}

// Cause returns the cause of the first Cancel, or nil.
func (l *Canceler) Cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Deadline returns false. Like the methods below it is part of context.Context.
func (l *Canceler) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done returns a channel that Cancel closes.
func (l *Canceler) Done() <-chan struct{} {
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

// Err returns context.Canceled once it is canceled; Cause returns why.
func (l *Canceler) Err() error {
	if l.Cause() != nil {
		return context.Canceled
	}
	return nil
}

// Value returns nil.
func (l *Canceler) Value(any) any { return nil }

// causeOf is context.Cause that knows Cancelers, too.
func causeOf(ctx context.Context) error {
	if l, ok := ctx.(*Canceler); ok {
		return l.Cause()
	}
	return context.Cause(ctx)
}

// CancelSet cancels many Cancelers at once. It is safe for concurrent use. The zero value is ready.
type CancelSet struct {
	mu    sync.Mutex
	head  *Canceler // doubly linked
	cause error     // once all are canceled
}

// Add adds l, and cancels it if the set is canceled.
func (s *CancelSet) Add(l *Canceler) {
	s.mu.Lock()
	cause := s.cause
	l.set, l.next = s, s.head
	if s.head != nil {
		s.head.prev = l
	}
	s.head = l
	s.mu.Unlock()
	if cause != nil {
		l.Cancel(cause)
	}
}

// Remove removes l from its set, if it is in one.
func (l *Canceler) Remove() {
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

// Cancel cancels all members, and every one that is added later.
func (s *CancelSet) Cancel(cause error) {
	s.mu.Lock()
	s.cause = cause
	var all []*Canceler
	for l := s.head; l != nil; l = l.next {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.Cancel(cause)
	}
}
