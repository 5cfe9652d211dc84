//go:build !linux

package router

import (
	"net"
	"sync"
)

// goneWatcher watches connections that tell themselves when their peer has left. This system's kernel is not asked about others.
type goneWatcher struct {
	mu     sync.Mutex
	closed bool
}

func newGoneWatcher() *goneWatcher { return new(goneWatcher) }

// Watch calls left, once, when the peer of conn has left. It reports false if conn cannot be watched.
func (g *goneWatcher) Watch(conn net.Conn, left func()) (goneWatch, bool) {
	return g.notified(innermost(conn), left)
}

// Close ends the watcher. No function is called afterwards.
func (g *goneWatcher) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
