package kvplane

import (
	"errors"
	"sync"
	"testing"

	"pdrouter/internal/cuda"
	"pdrouter/kvplane/memory"
)

// room is the memory of one agent under test: what its transport registers, and bytes that the test reads and writes.
type room struct {
	memory memory.Region
	bytes  []byte       // the memory itself, or a copy of it
	load   func() error // brings the copy up to date; nil: there is none
	store  func() error // brings the memory up to date; nil: there is no copy
}

// newRoom makes n bytes of one kind of memory: "" is the host's, "copied" is the host's seen through a copy, which
// shows where a test forgets to load or store, and "vram" is a GPU's.
func newRoom(t testing.TB, kind string, n int) room {
	t.Helper()
	if kind == "vram" {
		return newRoomOnGPU(t, n)
	}
	mem, free, err := memory.Allocate(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := free(); err != nil {
			t.Error(err)
		}
	})
	r := room{memory: memory.Of(mem), bytes: mem}
	if kind == "copied" {
		r.bytes = make([]byte, n)
		r.load = func() error { copy(r.bytes, mem); return nil }
		r.store = func() error { copy(mem, r.bytes); return nil }
	}
	return r
}

// openGPU opens the first GPU of this machine, for as long as the tests run.
var openGPU = sync.OnceValues(func() (*cuda.Device, error) {
	lib, err := cuda.Open("")
	if err != nil {
		return nil, err
	}
	n, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errors.New("the driver has no GPU")
	}
	return lib.Device(0)
})

func newRoomOnGPU(t testing.TB, n int) room {
	t.Helper()
	d, err := openGPU()
	if err != nil {
		t.Skip("SKIPPED, not run with a real GPU:", err)
	}
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	bytes := make([]byte, n)
	return room{
		memory: memory.On(m), bytes: bytes,
		load:  func() error { return errors.Join(m.Sync(), m.Read(0, bytes)) },
		store: func() error { return errors.Join(m.Write(0, bytes), m.Sync()) },
	}
}

// TestMemoryOnGPU: what describes memory on a GPU names the device, and its bytes are as they were stored.
func TestMemoryOnGPU(t *testing.T) {
	r := newRoom(t, "vram", 8192)
	n := &node{t: t, room: r, mem: r.bytes}
	if r.memory.Base == 0 || r.memory.Length != 8192 || r.memory.Type != "vram" || r.memory.Device != 0 {
		t.Errorf("described as %+v", r.memory)
	}
	scribble(n.mem, 1)
	want := digest(n.mem)
	n.store()
	clear(n.mem)
	n.load()
	if digest(n.mem) != want {
		t.Error("the bytes differ")
	}
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
