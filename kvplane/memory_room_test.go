package kvplane

import (
	"testing"
)

// room is the memory of one agent under test: what its transport registers, and bytes that the test reads and writes.
type room struct {
	memory Memory
	bytes  []byte       // the memory itself, or a copy of it
	load   func() error // brings the copy up to date; nil: there is none
	store  func() error // brings the memory up to date; nil: there is no copy
}

// newRoom makes n bytes of one kind of memory: "" is the host's, "copied" is the host's seen through a copy, which
// shows where a test forgets to load or store.
func newRoom(t testing.TB, kind string, n int) room {
	t.Helper()
	mem, free, err := AllocateMemory(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := free(); err != nil {
			t.Error(err)
		}
	})
	r := room{memory: MemoryOf(mem), bytes: mem}
	if kind == "copied" {
		r.bytes = make([]byte, n)
		r.load = func() error { copy(r.bytes, mem); return nil }
		r.store = func() error { copy(mem, r.bytes); return nil }
	}
	return r
}

// load brings what the transport has written into mem.
func (n *node) load() {
	n.t.Helper()
	if n.room.load == nil {
		return
	}
	if err := n.room.load(); err != nil {
		n.t.Fatal(err)
	}
}

// store brings what the test has written into mem to where the transport reads.
func (n *node) store() {
	n.t.Helper()
	if n.room.store == nil {
		return
	}
	if err := n.room.store(); err != nil {
		n.t.Fatal(err)
	}
}
