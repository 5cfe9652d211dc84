package disconnect

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sockets are the two ends of a TCP connection.
func sockets(t *testing.T, ln net.Listener) (server, client *net.TCPConn) {
	t.Helper()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func watcher(t *testing.T) *Watcher {
	g := New()
	t.Cleanup(g.Close)
	return g
}

// signal is a function and the channel that is closed when it is called; a second call panics.
func signal() (func(), chan struct{}) {
	ch := make(chan struct{})
	return func() { close(ch) }, ch
}

func wait(t *testing.T, ch chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(30 * time.Second):
		t.Fatal("not told that the peer left")
	}
}

func quietFor(t *testing.T, ch chan struct{}) {
	t.Helper()
	select {
	case <-ch:
		t.Fatal("told that a peer left that had not")
	case <-time.After(20 * time.Millisecond):
	}
}

func TestLeft(t *testing.T) {
	tests := []struct {
		name  string
		leave func(c *net.TCPConn)
	}{
		{"close", func(c *net.TCPConn) { c.Close() }},
		{"half close", func(c *net.TCPConn) { c.CloseWrite() }},
		{"reset", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }},
		{"close after bytes", func(c *net.TCPConn) { c.Write([]byte("GET")); c.Close() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := watcher(t)
			s, c := sockets(t, listen(t))
			onGone, ch := signal()
			if _, ok := g.Watch(s, onGone); !ok {
				t.Fatal("not watched")
			}
			quietFor(t, ch)
			tt.leave(c)
			wait(t, ch)

			later, ch := signal()
			if _, ok := g.Watch(s, later); !ok {
				t.Fatal("not watched again")
			}
			wait(t, ch)
		})
		t.Run(tt.name+" before the watch", func(t *testing.T) {
			g := watcher(t)
			s, c := sockets(t, listen(t))
			tt.leave(c)
			onGone, ch := signal()
			if _, ok := g.Watch(s, onGone); !ok {
				t.Fatal("not watched")
			}
			wait(t, ch)
		})
	}
}

func TestBytesAreNoEnd(t *testing.T) {
	g := watcher(t)
	s, c := sockets(t, listen(t))
	onGone, ch := signal()
	g.Watch(s, onGone)
	c.Write([]byte("GET / HTTP/1.1\r\n"))
	quietFor(t, ch)
	c.Close()
	wait(t, ch)
}

func TestStop(t *testing.T) {
	g := watcher(t)
	s, c := sockets(t, listen(t))
	var first atomic.Bool
	w, ok := g.Watch(s, func() { first.Store(true) })
	if !ok {
		t.Fatal("not watched")
	}
	w.Stop()
	w.Stop()
	// The next request on the same connection.
	onGone, ch := signal()
	old := w
	w, ok = g.Watch(s, onGone)
	old.Stop()
	if !ok || len(g.conns) != 1 {
		t.Fatalf("watched again: %v, %d registrations", ok, len(g.conns))
	}
	c.Close()
	wait(t, ch)
	w.Stop()
	if first.Load() {
		t.Error("a stopped watch told")
	}
	Watch{}.Stop()
}

// TestLeftBetweenRequests has the peer leave between two watches: the next one tells at once.
func TestLeftBetweenRequests(t *testing.T) {
	g := watcher(t)
	s, c := sockets(t, listen(t))
	w, _ := g.Watch(s, func() { t.Error("a stopped watch told") })
	w.Stop()
	c.Close()
	for gone := false; !gone; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		gone = w.w.gone
		g.mu.Unlock()
	}
	onGone, ch := signal()
	g.Watch(s, onGone)
	select {
	case <-ch:
	default:
		t.Error("Watch did not tell at once")
	}
}

// TestDescriptorUsedAgain closes watched connections without telling the watcher, as a server does, so that their descriptors go to
// other connections at once.
func TestDescriptorUsedAgain(t *testing.T) {
	g := watcher(t)
	ln := listen(t)
	again := 0
	seen := map[int32]bool{}
	for i := range 200 {
		s, c := sockets(t, ln)
		var told atomic.Int32
		onGone, ch := signal()
		w, ok := g.Watch(s, func() { told.Add(1); onGone() })
		if !ok {
			t.Fatal("not watched")
		}
		raw, _ := s.SyscallConn()
		raw.Control(func(fd uintptr) {
			if seen[int32(fd)] {
				again++
			}
			seen[int32(fd)] = true
		})
		if i%2 == 0 {
			w.Stop()
			s.Close()
			c.Close()
			if told.Load() != 0 {
				t.Fatal("a stopped watch told")
			}
			continue
		}
		c.Close()
		wait(t, ch)
		w.Stop()
		s.Close()
	}
	if again == 0 {
		t.Skip("the system never used a number again")
	}
}

func TestMany(t *testing.T) {
	g := watcher(t)
	ln := listen(t)
	var allGone sync.WaitGroup
	var clients []*net.TCPConn
	for range 300 {
		s, c := sockets(t, ln)
		allGone.Add(1)
		if _, ok := g.Watch(s, allGone.Done); !ok {
			t.Fatal("not watched")
		}
		clients = append(clients, c)
	}
	for _, c := range clients {
		go c.Close()
	}
	done := make(chan struct{})
	go func() { allGone.Wait(); close(done) }()
	wait(t, done)
}

func TestClose(t *testing.T) {
	g := New()
	g.Close() // before the first watch
	s, c := sockets(t, listen(t))
	if _, ok := g.Watch(s, func() {}); ok {
		t.Error("a closed watcher watches")
	}
	g = New()
	if _, ok := g.Watch(s, func() { t.Error("told by a closed watcher") }); !ok {
		t.Fatal("not watched")
	}
	g.Close()
	g.Close()
	c.Close()
}

func TestNoSocket(t *testing.T) {
	g := watcher(t)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, ok := g.Watch(near, func() {}); ok || g.poll != nil {
		t.Error("a pipe is watched")
	}
}

func BenchmarkWatch(b *testing.B) {
	g := New()
	defer g.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	onGone := func() {}
	b.ReportAllocs()
	for b.Loop() {
		w, _ := g.Watch(s, onGone)
		w.Stop()
	}
}
