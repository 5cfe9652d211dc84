package transporttest

import (
	"errors"
	"sync"
	"testing"

	"pdrouter/internal/cuda"
	"pdrouter/kvplane/memory"
)

// Room is the memory of one agent under test: what its transport registers, and bytes that the test reads and writes.
type Room struct {
	Memory memory.Region
	Bytes  []byte       // the memory itself, or a copy of it
	load   func() error // brings the copy up to date; nil: there is none
	store  func() error // brings the memory up to date; nil: there is no copy
}

// NewRoom makes n bytes of one kind of memory: "" is the host's, "copied" is the host's seen through a copy, which
// shows where a test forgets to load or store, and "vram" is a GPU's.
func NewRoom(t testing.TB, kind string, n int) Room {
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
	r := Room{Memory: memory.Of(mem), Bytes: mem}
	if kind == "copied" {
		r.Bytes = make([]byte, n)
		r.load = func() error { copy(r.Bytes, mem); return nil }
		r.store = func() error { copy(mem, r.Bytes); return nil }
	}
	return r
}

// OpenGPU opens the first GPU of this machine, for as long as the tests run.
var OpenGPU = sync.OnceValues(func() (*cuda.Device, error) {
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

func newRoomOnGPU(t testing.TB, n int) Room {
	t.Helper()
	d, err := OpenGPU()
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
	return Room{
		Memory: memory.On(m), Bytes: bytes,
		load:  func() error { return errors.Join(m.Sync(), m.Read(0, bytes)) },
		store: func() error { return errors.Join(m.Write(0, bytes), m.Sync()) },
	}
}
