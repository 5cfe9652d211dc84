// Package disconnect tells when the peer of a connection has left, while nothing reads from the connection.
//
// It asks the kernel about sockets, on one goroutine for all of them. It takes no bytes from a connection and does not close it. On
// systems other than Linux it watches only connections that are a Notifier. Its caller is a server whose requests wait: package router/edge
// ends a request whose client has left.
package disconnect

import "net"

// Notifier is a connection that is no socket and tells itself when its peer has left, such as a connection in memory.
type Notifier interface {
	// NotifyDisconnect has onGone called once, when the peer has left, or at once if it has left already. onGone replaces the function of an
	// earlier call.
	NotifyDisconnect(onGone func())
}

// watchedConn is one watched connection. The watcher's lock guards it. The kernel uses the file descriptor of a closed connection again
// for another connection; closing it has taken it out of epoll. conn and turn tell the two apart.
type watchedConn struct {
	conn   net.Conn
	turn   int32
	gone   bool
	onGone func() // nil between two requests
	n      uint64 // watches so far
}

// innermost is the connection that conn wraps.
func innermost(conn net.Conn) net.Conn {
	for {
		t, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = t.NetConn()
	}
}

// notified watches a connection that is no socket. It reports false if the connection is no Notifier.
func (g *Watcher) notified(conn net.Conn, onGone func()) (Watch, bool) {
	c, ok := conn.(Notifier)
	if !ok {
		return Watch{}, false
	}
	w := &watchedConn{onGone: onGone}
	c.NotifyDisconnect(func() {
		g.mu.Lock()
		onGone := w.onGone
		if w.onGone = nil; g.closed {
			onGone = nil
		}
		g.mu.Unlock()
		if onGone != nil {
			onGone()
		}
	})
	return Watch{g, w, 0}, true
}

// Watch is one watch of a connection. The zero value is a watch that never calls anything.
type Watch struct {
	g *Watcher
	w *watchedConn
	n uint64
}

// Stop ends the watch. If the peer leaves at this moment, onGone may still be called once.
func (w Watch) Stop() {
	if w.g == nil {
		return
	}
	w.g.mu.Lock()
	if w.w.n == w.n {
		w.w.onGone = nil
	}
	w.g.mu.Unlock()
}
