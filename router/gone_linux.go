package router

import "net"

type goneWatcher struct{}

func newGoneWatcher() *goneWatcher { return &goneWatcher{} }

// Watch calls left, once, from the watcher's goroutine, when the peer of conn has left; left must not block. It
// reports false if conn cannot be watched (it is no socket). The watch must be stopped before conn is closed.
func (g *goneWatcher) Watch(conn net.Conn, left func()) (goneWatch, bool) { return goneWatch{}, false }

// Close ends the watcher and waits for its goroutine. No function is called afterwards.
func (g *goneWatcher) Close() {}

// goneWatch is one watched connection; the zero value is a watch that never tells.
type goneWatch struct{}

// Stop ends the watch. left may be running; it will not be called after Stop has returned unless it was running then.
func (w goneWatch) Stop() {}
