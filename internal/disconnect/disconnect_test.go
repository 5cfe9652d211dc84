package disconnect_test

import (
	"net"
	"testing"

	"pdrouter/internal/disconnect"
)

// memory is a connection in memory that is told of its peer by the test.
type memory struct {
	net.Conn
	gone   bool
	onGone func()
}

func (m *memory) NotifyDisconnect(onGone func()) {
	if m.onGone = onGone; m.gone {
		onGone()
	}
}

func (m *memory) leave() {
	if m.gone = true; m.onGone != nil {
		m.onGone()
	}
}

// wrapper is a connection around another.
type wrapper struct{ net.Conn }

func (w wrapper) NetConn() net.Conn { return w.Conn }

// TestNotifier watches connections that tell themselves when their peer has left.
func TestNotifier(t *testing.T) {
	watcher, told := disconnect.New(), 0
	onGone := func() { told++ }
	watch := func(c net.Conn) disconnect.Watch {
		t.Helper()
		w, ok := watcher.Watch(c, onGone)
		if !ok {
			t.Fatal("not watched")
		}
		return w
	}
	want := func(n int) {
		t.Helper()
		if told != n {
			t.Errorf("told %d times; want %d", told, n)
		}
	}
	c := new(memory)
	watch(c).Stop()
	w := watch(wrapper{c})
	want(0)
	c.leave()
	want(1)
	w.Stop()
	watch(c) // for the next request
	want(2)

	stopped := new(memory)
	watch(stopped).Stop()
	stopped.leave()
	want(2)

	late := new(memory)
	watch(late)
	watcher.Close()
	late.leave()
	want(2)
}
