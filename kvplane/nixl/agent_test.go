package nixl

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"pdrouter/kvplane/memory/view"
)

const patience = 60 * time.Second

func callPointer(function uintptr, p *byte) uintptr {
	r, _, _ := purego.SyscallN(function, uintptr(unsafe.Pointer(p)))
	return r
}

// side is an agent with a backend and registered memory.
type side struct {
	*Agent
	backend *Backend
	reg     *Registration
	mem     []byte
	base    uint64
	got     map[string]int // messages, by sender and body
}

func newSide(t testing.TB, l *Library, name string, n int) *side {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	s := &side{mem: mem, base: view.Address(mem), got: map[string]int{}}
	if s.Agent, err = l.NewAgent(name, AgentConfig{}); err != nil {
		t.Fatal(err)
	}
	if s.backend, err = s.NewBackend("UCX", nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Use(s.backend); err != nil {
		t.Fatal(err)
	}
	if s.reg, err = s.Register(Memory{Kind: DRAM, Regions: []Region{{Address: s.base, Length: uint64(n)}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 { // twice: it must be safe
			if err := errors.Join(s.reg.Close(), s.backend.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		}
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *side) poll(t testing.TB) {
	t.Helper()
	if err := s.Notifications(func(sender string, m []byte) { s.got[sender+": "+string(m)]++ }); err != nil {
		t.Fatal(err)
	}
}

// until polls both sides until done.
func until(t testing.TB, what string, p, d *side, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
		p.poll(t)
		d.poll(t)
	}
}

func load(t testing.TB, into, of *side) {
	t.Helper()
	md, err := of.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	name, err := into.Load(md)
	if err != nil {
		t.Fatal(err)
	}
	if name != of.Name() {
		t.Fatalf("loaded %q; want %q", name, of.Name())
	}
	if err := into.Connect(name); err != nil {
		t.Fatal(err)
	}
}

// run posts a transfer and waits for its end.
func run(t testing.TB, tr *Transfer, p, d *side) {
	t.Helper()
	status, err := tr.Post()
	if err != nil {
		t.Fatal(err)
	}
	if status == InProgress {
		if err := tr.Close(); !errors.Is(err, ErrInProgress) {
			t.Errorf("Close in progress: %v; want ErrInProgress", err)
		}
	}
	until(t, "end of the transfer", p, d, func() bool {
		if status != InProgress {
			return true
		}
		if status, err = tr.Status(); err != nil {
			t.Fatal(err)
		}
		return status != InProgress
	})
	if err := errors.Join(tr.Close(), tr.Close()); err != nil {
		t.Error(err)
	}
	if _, err := tr.Status(); err == nil {
		t.Error("a closed transfer has a status")
	}
}

func TestAgentsTransfer(t *testing.T) {
	const blocks, size = 64, 4096
	l := library(t)
	p, d := newSide(t, l, "p@1", blocks*size), newSide(t, l, "d@1", blocks*size)
	if p.Knows("d@1") {
		t.Error("knows a peer that was never loaded")
	}
	load(t, p, d)
	load(t, d, p)
	if !p.Knows("d@1") {
		t.Error("does not know a loaded peer")
	}
	for i := range p.mem {
		p.mem[i] = byte(i*7 + i>>8 + i>>16)
	}
	regions := func(s *side, from, to uint64) Memory {
		m := Memory{Kind: DRAM}
		for i := from; i < to; i++ {
			m.Regions = append(m.Regions, Region{Address: s.base + i*size, Length: size})
		}
		return m
	}

	t.Run("lists", func(t *testing.T) {
		tr, err := p.NewTransfer(Write, regions(p, 0, 3), regions(d, 5, 8), "d@1", []byte("lists"))
		if err != nil {
			t.Fatal(err)
		}
		run(t, tr, p, d)
		until(t, "notification", p, d, func() bool { return d.got["p@1: lists"] == 1 })
		if !bytes.Equal(d.mem[5*size:8*size], p.mem[:3*size]) {
			t.Error("the bytes differ")
		}
		if !bytes.Equal(d.mem[:5*size], make([]byte, 5*size)) || !bytes.Equal(d.mem[8*size:], make([]byte, (blocks-8)*size)) {
			t.Error("bytes outside were changed")
		}
	})
	t.Run("prepared", func(t *testing.T) {
		from, err := p.Prepare("", regions(p, 0, blocks))
		if err != nil {
			t.Fatal(err)
		}
		to, err := p.Prepare("d@1", regions(d, 0, blocks))
		if err != nil {
			t.Fatal(err)
		}
		var at, into []int32
		for i := range int32(blocks) {
			at, into = append(at, i), append(into, (i*13+5)%blocks)
		}
		if _, err := p.NewIndexed(Write, from, []int32{0}, to, []int32{blocks}, nil); err == nil {
			t.Error("an index beyond the list was taken")
		}
		tr, err := p.NewIndexed(Write, from, at, to, into, []byte("prepared"))
		if err != nil {
			t.Fatal(err)
		}
		run(t, tr, p, d)
		until(t, "notification", p, d, func() bool { return d.got["p@1: prepared"] == 1 })
		for i := range at {
			a, b := int(at[i])*size, int(into[i])*size
			if !bytes.Equal(p.mem[a:a+size], d.mem[b:b+size]) {
				t.Errorf("block %d differs from block %d", into[i], at[i])
			}
		}
		if err := errors.Join(from.Close(), from.Close(), to.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Run("read", func(t *testing.T) {
		d.mem[0] = 99
		tr, err := p.NewTransfer(Read, regions(p, 0, 1), regions(d, 0, 1), "d@1", nil)
		if err != nil {
			t.Fatal(err)
		}
		run(t, tr, p, d)
		if p.mem[0] != 99 {
			t.Error("the byte was not read")
		}
	})
	t.Run("messages", func(t *testing.T) {
		for i := range 10 {
			if err := d.Notify("p@1", fmt.Append(nil, i)); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "messages", p, d, func() bool { return len(p.got) == 10 })
	})
	t.Run("errors", func(t *testing.T) {
		var e *Error
		outside := Memory{Regions: []Region{{Address: d.base + blocks*size, Length: 1}}}
		if _, err := p.NewTransfer(Write, regions(p, 0, 1), outside, "d@1", nil); !errors.As(err, &e) {
			t.Errorf("outside the peer's memory: %v; want an Error", err)
		}
		if _, err := p.NewTransfer(Write, regions(p, 0, 1), regions(d, 0, 1), "x@1", nil); !errors.As(err, &e) {
			t.Errorf("unknown peer: %v; want an Error", err)
		}
		if _, err := p.NewTransfer(Write, Memory{}, Memory{}, "d@1", nil); err == nil {
			t.Error("a transfer of nothing was made")
		}
		if err := p.Notify("x@1", []byte("hello")); !errors.As(err, &e) {
			t.Errorf("message to an unknown peer: %v; want an Error", err)
		}
		if err := p.Notify("x\x00", nil); err == nil {
			t.Error("a name with a NUL was taken")
		}
		if _, err := p.Load([]byte("not metadata")); err == nil {
			t.Error("broken metadata was loaded")
		}
		if _, err := p.Load(nil); err == nil {
			t.Error("no metadata was loaded")
		}
		if _, err := p.NewBackend("NO_SUCH_PLUGIN", nil); err == nil {
			t.Error("a plugin that does not exist was started")
		}
	})
	t.Run("forget", func(t *testing.T) {
		if err := p.Forget("d@1"); err != nil {
			t.Fatal(err)
		}
		if p.Knows("d@1") {
			t.Error("knows a forgotten peer")
		}
	})
}

func TestPlugins(t *testing.T) {
	l := library(t)
	a, err := l.NewAgent("plugins@1", AgentConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	names, err := a.Plugins()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n == "UCX" {
			return
		}
	}
	t.Errorf("no UCX among %v", names)
}
