package refengine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pdrouter/internal/cuda"
	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/metadata"
)

// fakeDevice is a device whose memory is the host's, and which counts what is done to it.
type fakeDevice struct {
	bytes                []byte
	free                 func() error
	reads, writes, syncs int
	fail                 error // of everything, if not nil
}

func (d *fakeDevice) Read(off int, p []byte) error {
	d.reads++
	copy(p, d.bytes[off:off+len(p)])
	return d.fail
}

func (d *fakeDevice) Write(off int, p []byte) error {
	d.writes++
	copy(d.bytes[off:off+len(p)], p)
	return d.fail
}

func (d *fakeDevice) Sync() error  { d.syncs++; return d.fail }
func (d *fakeDevice) Close() error { return d.free() }

// fakeDevices makes fake devices and keeps them for a test to look at.
type fakeDevices struct{ made []*fakeDevice }

func (f *fakeDevices) device(_, n int) (DeviceMemory, memory.Region, error) {
	b, free, err := memory.Allocate(n)
	if err != nil {
		return nil, memory.Region{}, err
	}
	d := &fakeDevice{bytes: b, free: free}
	f.made = append(f.made, d)
	return d, memory.Of(b), nil
}

// kvMemory is a place for the KV cache and a transport that reaches it.
type kvMemory struct {
	device    Device
	transport func() transport.Transport
}

func overTCP() transport.Transport { return tcp.New(tcp.Config{}) }

// fakeDriverMemory is memory of the fake driver, compiled from C. It is the host's, and is called so to the transport.
func fakeDriverMemory(t *testing.T) kvMemory {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("SKIPPED, not run against the fake driver: there is no C compiler:", err)
	}
	path := filepath.Join(t.TempDir(), "libfakecuda.so")
	if out, err := exec.Command(cc, "-std=gnu11", "-fPIC", "-shared", "-pthread", "-o", path, "../../internal/cuda/testdata/fakecuda.c").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	lib, err := cuda.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	make := cudaDevice(t, lib)
	return kvMemory{transport: overTCP, device: func(rank, n int) (DeviceMemory, memory.Region, error) {
		m, at, err := make(rank, n)
		at.Type, at.Device = "", 0
		return m, at, err
	}}
}

// gpuMemory is memory of a real GPU, which NIXL reaches.
func gpuMemory(t *testing.T) kvMemory {
	lib, err := cuda.Open("")
	if err != nil {
		t.Skip("SKIPPED, not run with a real GPU:", err)
	}
	nx, err := nixl.Open("")
	if err != nil {
		t.Skip("SKIPPED, not run with a real GPU, which only NIXL reaches:", err)
	}
	return kvMemory{device: cudaDevice(t, lib), transport: func() transport.Transport { return nixltransport.New(nx, nixltransport.Config{}) }}
}

// cudaDevice makes memory on the first device of a driver.
func cudaDevice(t *testing.T, lib *cuda.Library) Device {
	t.Helper()
	d, err := lib.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), lib.Close()); err != nil { // refused while memory is live
			t.Error(err)
		}
	})
	return func(_, n int) (DeviceMemory, memory.Region, error) {
		m, err := d.Alloc(n)
		if err != nil {
			return nil, memory.Region{}, err
		}
		return m, memory.On(m), nil
	}
}

// TestDeviceMemoryAnswersAlike: engines whose KV lies on a device answer as one whose KV lies in the host's memory,
// alone and split, from and to the device, over orders, block sizes, and numbers of ranks.
func TestDeviceMemoryAnswersAlike(t *testing.T) {
	shape := Shape{Seed: 21, Layers: 2, Heads: 4, HeadDim: 2}
	for name, open := range map[string]func(*testing.T) kvMemory{
		"fake":        func(*testing.T) kvMemory { return kvMemory{new(fakeDevices).device, overTCP} },
		"fake driver": fakeDriverMemory,
		"GPU":         gpuMemory,
	} {
		t.Run(name, func(t *testing.T) {
			kv := open(t)
			one := newTestEngine(t, Config{Shape: shape})
			for i, c := range []struct {
				p, d     Device
				tp, dtp  int
				order    metadata.Order
				pb, db   int
				together int
			}{
				{kv.device, kv.device, 2, 4, metadata.HeadsFirst, 4, 4, 8},
				{nil, kv.device, 4, 2, metadata.HeadsFirst, 2, 4, 8},
				{kv.device, nil, 1, 2, metadata.HeadsFirst, 8, 4, 8},
				{kv.device, kv.device, 1, 1, metadata.TokensFirst, 3, 3, 8},
			} {
				var book phonebook
				engine := func(name string, role metadata.Role, d Device, tp, blockTokens int) *Engine {
					return book.openOver(t, Config{Name: name, Role: role, Shape: shape, TP: tp, BlockTokens: blockTokens, Blocks: 200,
						Order: c.order, PrefixCache: i == 1, Device: d}, kv.transport)
				}
				x := pair{p: engine("p", metadata.Prefill, c.p, c.tp, c.pb), d: engine("d", metadata.Both, c.d, c.dtp, c.db)}
				r := rand.New(rand.NewPCG(uint64(i), 5))
				var requests []Request
				var ps, ds []*Sequence
				for range c.together {
					q := draw(r)
					p, d := x.dispatch(t, q)
					requests, ps, ds = append(requests, q), append(ps, p), append(ds, d)
				}
				for n, q := range requests {
					want := alone(t, one, q)
					if _, err := collect(ps[n]); err != nil {
						t.Errorf("row %d, request %d: prefill: %v", i, n, err)
					}
					if got, err := collect(ds[n]); err != nil || !slices.Equal(got, want) {
						t.Errorf("row %d, request %d: split: %v, %v; want %v", i, n, got, err, want)
					}
					if got := alone(t, x.d, q); !slices.Equal(got, want) {
						t.Errorf("row %d, request %d: alone: %v; want %v", i, n, got, want)
					}
				}
				x.settled(t)
				closeEngine(t, x.d)
				closeEngine(t, x.p)
			}
			closeEngine(t, one)
		})
	}
}

// TestDeviceDamageShows: the faults of memory reach a device's memory too.
func TestDeviceDamageShows(t *testing.T) {
	shape := Shape{Seed: 22, Layers: 2, Heads: 4, HeadDim: 2}
	one := newTestEngine(t, Config{Shape: shape})
	faults := []Fault{
		{Leg: DecodeLeg, Nth: 1, Do: FlipBit, Rank: 1, Layer: 1, Plane: 1, Head: 1, Token: 5, Bit: 77},
		{Leg: DecodeLeg, Nth: 2, Do: SwapBlocks, Rank: 0, Block: 0, Other: 1},
		{Leg: DecodeLeg, Nth: 3, Do: ForeignBlock, Rank: 0, Block: 1, Other: 3},
	}
	var book phonebook
	x := pair{
		p: book.open(t, Config{Name: "p", Shape: shape, BlockTokens: 4, Blocks: 64, Device: new(fakeDevices).device}),
		d: book.open(t, Config{Name: "d", Shape: shape, TP: 2, BlockTokens: 4, Blocks: 64, Device: new(fakeDevices).device, Faults: faults}),
	}
	r := rand.New(rand.NewPCG(9, 9))
	for n := range 5 {
		q := Request{Tokens: prompt(r, 13), MaxTokens: 7, IgnoreEnd: true}
		_, s := x.dispatch(t, q)
		got, err := collect(s)
		if err != nil {
			t.Fatal(err)
		}
		if want := alone(t, one, q); slices.Equal(got, want) != (n == 0 || n == 4) {
			t.Errorf("request %d answered %v; one engine %v", n, got, want)
		}
	}
	x.settled(t)
}

// TestDeviceMemoryStagesWholeBlocks: a block is read once and written once between two settles, however many words of it are used.
func TestDeviceMemoryStagesWholeBlocks(t *testing.T) {
	var f fakeDevices
	c := Config{Shape: Shape{Layers: 2, Heads: 2, HeadDim: 4}, BlockTokens: 4, Blocks: 8, Device: f.device}.withDefaults()
	m, err := newCache(c, 0, span{0, 2}, span{0, c.Shape.Layers})
	if err != nil {
		t.Fatal(err)
	}
	defer m.memory.close()
	words := []uint64{1, 2, 3, 4}
	for plane := range planes {
		for place := range 4 {
			m.put(1, 3, plane, 0, place, words)
			m.put(1, 5, plane, 1, place, words)
		}
	}
	d := f.made[0]
	if !bytes.Equal(d.bytes, make([]byte, len(d.bytes))) {
		t.Error("the device was written before settle")
	}
	m.memory.settle()
	m.memory.settle()
	if d.reads != 2 || d.writes != 2 {
		t.Errorf("%d reads and %d writes; want 2 and 2", d.reads, d.writes)
	}
	d.bytes[m.block(1, 3)+m.at(0, 0, 0)] = 9 // as the plane does
	out, keys := make([]uint64, 4), make([]uint64, 4)
	m.sum(out, 1, 0, 0, []int32{3}, 1, keys)
	if out[0] != scramble(9) || out[1] != scramble(2) {
		t.Error("what was written beside the engine is not seen")
	}
	m.memory.settle()
	if d.reads != 3 || d.writes != 2 {
		t.Errorf("%d reads and %d writes; want 3 and 2", d.reads, d.writes)
	}
}

// TestDeviceFailureShows: an engine whose device fails says so, and answers nothing that it made up.
func TestDeviceFailureShows(t *testing.T) {
	broken := errors.New("the bus is gone")
	for name, at := range map[string]string{"computing": "p", "landing": "d"} {
		t.Run(name, func(t *testing.T) {
			var p, d fakeDevices
			var book phonebook
			shape := Shape{Seed: 23, Layers: 2, Heads: 4, HeadDim: 2}
			x := pair{
				p: book.open(t, Config{Name: "p", Shape: shape, BlockTokens: 4, Blocks: 64, Device: p.device}),
				d: book.open(t, Config{Name: "d", Shape: shape, BlockTokens: 4, Blocks: 64, Device: d.device}),
			}
			fails := map[string]*fakeDevices{"p": &p, "d": &d}[at]
			fails.made[0].fail = broken
			q := Request{Tokens: prompt(rand.New(rand.NewPCG(1, 1)), 9), MaxTokens: 3, IgnoreEnd: true}
			ps, ds := x.dispatch(t, q)
			_, perr := collect(ps)
			_, derr := collect(ds)
			if at == "p" && (!errors.Is(perr, ErrMemory) || !errors.Is(perr, broken) || derr == nil) {
				t.Errorf("prefill ended in %v, decode in %v; want the device's error, and any", perr, derr)
			}
			if at == "d" && (!errors.Is(derr, ErrMemory) || !errors.Is(derr, broken) || perr != nil) {
				t.Errorf("decode ended in %v, prefill in %v; want the device's error, and none", derr, perr)
			}
			x.settled(t)
		})
	}
}

// TestDeviceIsSyncedBeforeOfferAndRelease counts the device's own synchronization around a hand-off.
func TestDeviceIsSyncedBeforeOfferAndRelease(t *testing.T) {
	var p, d fakeDevices
	var book phonebook
	shape := Shape{Seed: 24, Layers: 2, Heads: 4, HeadDim: 2}
	x := pair{
		p: book.open(t, Config{Name: "p", Shape: shape, BlockTokens: 4, Blocks: 64, Device: p.device}),
		d: book.open(t, Config{Name: "d", Shape: shape, BlockTokens: 4, Blocks: 64, Device: d.device}),
	}
	_, s := x.dispatch(t, Request{Tokens: prompt(rand.New(rand.NewPCG(1, 2)), 9), MaxTokens: 1, IgnoreEnd: true})
	if _, err := collect(s); err != nil {
		t.Fatal(err)
	}
	x.settled(t)
	closeEngine(t, x.d)
	closeEngine(t, x.p)
	if n := p.made[0].syncs; n != 1 {
		t.Errorf("prefill's device was synchronized %d times; want once, after its step", n)
	}
	if n := d.made[0].syncs; n != 2 {
		t.Errorf("decode's device was synchronized %d times; want twice: when the blocks were there, and after the step", n)
	}
}

func TestLayoutNamesTheDevice(t *testing.T) {
	layout := func(device Device) metadata.Layout {
		c := Config{Shape: Shape{Layers: 3}, Device: device}.withDefaults()
		m, err := newCache(c, 0, span{0, 4}, span{0, c.Shape.Layers})
		if err != nil {
			t.Fatal(err)
		}
		defer m.memory.close()
		return m.layout(4)
	}
	on := func(device int, kind string) Device {
		var f fakeDevices
		return func(rank, n int) (DeviceMemory, memory.Region, error) {
			m, at, err := f.device(rank, n)
			at.Type, at.Device = kind, device
			return m, at, err
		}
	}
	if l := layout(nil); l.MemoryType != "dram" || l.Regions[2].Device != 0 {
		t.Errorf("the host's memory is called %s of device %d", l.MemoryType, l.Regions[2].Device)
	}
	if l := layout(on(3, "vram")); l.MemoryType != "vram" || l.Regions[0].Device != 3 || l.Regions[2].Device != 3 {
		t.Errorf("a GPU's memory is called %s of devices %d, %d; want vram of 3", l.MemoryType, l.Regions[0].Device, l.Regions[2].Device)
	}
}

// openOver is open over another transport.
func (b *phonebook) openOver(t *testing.T, c Config, open func() transport.Transport) *Engine {
	t.Helper()
	c.Plane = Plane{
		Transport: func(int) (transport.Transport, error) { return open(), nil }, Directory: b,
		Times: kvplane.Times{NetDelay: 10 * time.Millisecond},
	}
	e := newTestEngine(t, c)
	b.add(e)
	return e
}
