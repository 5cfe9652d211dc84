package router

import "net"

// disconnectNotifier is a connection that tells itself when its peer has left: one in memory, which no kernel knows.
type disconnectNotifier interface {
	// NotifyDisconnect has left called once, when the peer has left, or at once if it has left already. left replaces the function of an
	// earlier call.
	NotifyDisconnect(left func())
}

// watchedConn is one watched connection. The kernel uses a file descriptor again for another connection once it is closed, which
// takes it out of epoll: conn and turn tell the two apart. The watcher's lock guards it.
type watchedConn struct {
	conn net.Conn
	turn int32
	gone bool
	left func() // nil between two requests
	n    uint64 // watches so far
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

// notified watches a connection that is no socket.
func (g *goneWatcher) notified(conn net.Conn, left func()) (goneWatch, bool) {
	c, ok := conn.(disconnectNotifier)
	if !ok {
		return goneWatch{}, false
	}
	w := &watchedConn{left: left}
	c.NotifyDisconnect(func() {
		g.mu.Lock()
		left := w.left
		if w.left = nil; g.closed {
			left = nil
		}
		g.mu.Unlock()
		if left != nil {
			left()
		}
	})
	return goneWatch{g, w, 0}, true
}

// goneWatch is one watch of a connection. The zero value is a watch that never calls anything.
type goneWatch struct {
	g *goneWatcher
	w *watchedConn
	n uint64
}

// Stop ends the watch. If the peer leaves at this moment, left may still be called once.
func (w goneWatch) Stop() {
	if w.g == nil {
		return
	}
	w.g.mu.Lock()
	if w.w.n == w.n {
		w.w.left = nil
	}
	w.g.mu.Unlock()
}
