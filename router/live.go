package router

import "sync"

// live is the set of requests under way.
type live struct {
	mu   sync.Mutex
	head *exchange // doubly linked, newest first
	n    int
}

func (l *live) add(x *exchange) {
	l.mu.Lock()
	x.next = l.head
	if l.head != nil {
		l.head.prev = x
	}
	l.head = x
	if x.fan == nil {
		l.n++
	}
	l.mu.Unlock()
}

func (l *live) remove(x *exchange) {
	l.mu.Lock()
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		l.head = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
	if x.fan == nil {
		l.n--
	}
	l.mu.Unlock()
}

// count adds to the number of requests one that consists of branches, or takes it away.
func (l *live) count(by int) {
	l.mu.Lock()
	l.n += by
	l.mu.Unlock()
}

// all returns the requests under way at this moment.
func (l *live) all() []*exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*exchange, 0, l.n)
	for x := l.head; x != nil; x = x.next {
		out = append(out, x)
	}
	return out
}

func (l *live) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}
