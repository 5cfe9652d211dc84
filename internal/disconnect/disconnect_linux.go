package disconnect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watcher watches connections. Its goroutine starts with the first socket, and sleeps in the runtime's poller, not in a thread of its
// own. New makes one. It is safe for concurrent use.
//
// A peer that closes only its sending half counts as gone. A socket stays registered with the kernel, disarmed or armed, from one of
// its requests to the next, so that watching it again costs no system call.
type Watcher struct {
	mu     sync.Mutex
	poll   *os.File // the epoll instance; nil until the first Watch
	raw    syscall.RawConn
	err    error                     // why there is no watching
	conns  map[int32]*watchedConn    // by file descriptor
	known  map[net.Conn]*watchedConn // the same
	turn   int32                     // of the last registration
	closed bool
	ended  chan struct{}
}

// New returns a Watcher. Close it.
func New() *Watcher {
	return &Watcher{conns: make(map[int32]*watchedConn), known: make(map[net.Conn]*watchedConn)}
}

// Watch calls onGone once, when the peer of conn has left: on the watcher's goroutine, or before Watch returns if the peer has left
// already. onGone must not block. Watch reports false if conn cannot be watched: it is neither a socket nor a Notifier. Stop the watch
// before conn is closed or used for another request.
func (g *Watcher) Watch(conn net.Conn, onGone func()) (Watch, bool) {
	inner := innermost(conn)
	sc, ok := inner.(syscall.Conn)
	if !ok {
		return g.notified(inner, onGone)
	}
	if w, n, gone := g.again(inner, onGone); w != nil {
		if gone {
			onGone()
		}
		return Watch{g, w, n}, true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return Watch{}, false
	}
	w := &watchedConn{conn: inner, onGone: onGone}
	if cerr := raw.Control(func(fd uintptr) { err = g.add(int32(fd), w) }); cerr != nil || err != nil {
		return Watch{}, false
	}
	return Watch{g, w, 0}, true
}

// again watches a connection that the kernel knows for its next request. It returns nil if the kernel does not.
func (g *Watcher) again(conn net.Conn, onGone func()) (w *watchedConn, n uint64, gone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w = g.known[conn]; w == nil || g.closed {
		return nil, 0, false
	}
	if !w.gone {
		w.onGone = onGone
		w.n++
	}
	return w, w.n, w.gone
}

// add registers the connection.
func (g *Watcher) add(fd int32, w *watchedConn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.startLocked(); err != nil {
		return err
	}
	if old := g.conns[fd]; old != nil { // it is closed: its number came free
		delete(g.known, old.conn)
	}
	g.turn++
	w.turn = g.turn
	if err := g.armLocked(unix.EPOLL_CTL_ADD, fd, w.turn); err != nil {
		return err
	}
	g.conns[fd], g.known[w.conn] = w, w
	return nil
}

// armLocked asks the kernel for one event of the connection. Fd and Pad are the caller's own 64 bits.
func (g *Watcher) armLocked(op int, fd, turn int32) error {
	var err error
	cerr := g.raw.Control(func(epfd uintptr) {
		err = unix.EpollCtl(int(epfd), op, int(fd), &unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: fd, Pad: turn})
	})
	return errors.Join(cerr, err)
}

// startLocked makes the epoll instance and its goroutine.
func (g *Watcher) startLocked() error {
	if g.closed {
		return net.ErrClosed
	}
	if g.poll != nil || g.err != nil {
		return g.err
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that os.File hands it to the runtime's poller
	}
	if err != nil {
		g.err = fmt.Errorf("disconnect: epoll: %w", err)
		return g.err
	}
	g.poll = os.NewFile(uintptr(fd), "epoll")
	if g.raw, err = g.poll.SyscallConn(); err != nil {
		g.err = fmt.Errorf("disconnect: epoll: %w", err)
		return g.err
	}
	g.ended = make(chan struct{})
	go g.run()
	return nil
}

// run serves events until the epoll instance is closed.
func (g *Watcher) run() {
	defer close(g.ended)
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		err := g.raw.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), events, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if onGone := g.event(e); onGone != nil {
				onGone()
			}
		}
	}
}

// event takes one event and returns what to call.
func (g *Watcher) event(e unix.EpollEvent) func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.conns[e.Fd]
	if w == nil || w.turn != e.Pad || g.closed {
		return nil // of a connection that is closed, whose number another one has
	}
	if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) == 0 && !leftSocket(w.conn) {
		if g.armLocked(unix.EPOLL_CTL_MOD, e.Fd, w.turn) != nil {
			delete(g.conns, e.Fd)
			delete(g.known, w.conn)
		}
		return nil
	}
	w.gone = true
	onGone := w.onGone
	w.onGone = nil
	return onGone
}

// leftSocket reports whether the peer has closed its half: the next read would find the end of the bytes or an error. It also reports
// true if there are bytes to read: then only the event itself tells a closed half from an open one.
func leftSocket(conn net.Conn) bool {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	open := false
	if raw.Control(func(fd uintptr) {
		var buf [1]byte
		_, _, err := unix.Recvfrom(int(fd), buf[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		open = err == unix.EAGAIN || err == unix.EINTR
	}) != nil {
		return true
	}
	return !open
}

// Close ends the watcher and waits for its goroutine. No function is called afterwards.
func (g *Watcher) Close() {
	g.mu.Lock()
	poll, ended := g.poll, g.ended
	g.closed = true
	clear(g.conns)
	clear(g.known)
	g.mu.Unlock()
	if poll != nil {
		poll.Close()
	}
	if ended != nil {
		<-ended
	}
}
