//go:build !linux

package disconnect

import (
	"net"
	"sync"
)

// Watcher watches connections that are a Notifier. New makes one. It is safe for concurrent use.
type Watcher struct {
	mu     sync.Mutex
	closed bool
}

// New returns a Watcher.
func New() *Watcher { return new(Watcher) }

// Watch calls onGone once, when the peer of conn has left. onGone must not block. Watch reports false if conn is no Notifier. Stop the watch
// before conn is closed or used for another request.
func (g *Watcher) Watch(conn net.Conn, onGone func()) (Watch, bool) {
	return g.notified(innermost(conn), onGone)
}

// Close ends the watcher. No function is called afterwards.
func (g *Watcher) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
