package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/kvplane/wire/wiretest"
	"pdrouter/metadata"
)

// memoryWire is one end of a transport between two owners that a test runs by hand. It allocates nothing of its own once it
// has been used.
type memoryWire struct {
	far     *memoryWire
	name    string
	in      []transport.Incoming
	buffers [64][]byte // of messages; an owner keeps none of them once it has taken it in
	next    int
	last    map[wire.Kind][]byte // what was said last, by its kind
}

func (t *memoryWire) Name() string                                         { return "wire" }
func (t *memoryWire) Open(string, []memory.Region) ([]byte, string, error) { return nil, "", nil }
func (t *memoryWire) Connect(metadata.Record) error                        { return nil }
func (t *memoryWire) Disconnect(string)                                    {}
func (t *memoryWire) Wake() <-chan struct{}                                { return nil }
func (t *memoryWire) Polled() bool                                         { return false }
func (t *memoryWire) Close() error                                         { return nil }
func (t *memoryWire) deliver(in transport.Incoming)                        { t.in = append(t.in, in) }

func (t *memoryWire) Send(_ string, body []byte) error {
	b := &t.buffers[t.next%len(t.buffers)]
	t.next++
	*b = append((*b)[:0], body...)
	if l, err := wire.Decode(*b); err == nil && t.last != nil {
		kind := wire.Kind(l.Body[0])
		t.last[kind] = append(t.last[kind][:0], body...)
	}
	t.far.deliver(transport.Incoming{Kind: transport.MessageReceived, Agent: t.name, Body: *b})
	return nil
}

func (t *memoryWire) Write(agent string, id uint64, _ []kvplane.Range, notify []byte) error {
	t.deliver(transport.Incoming{Kind: transport.WriteEnded, Agent: agent, ID: id})
	return t.Send(agent, notify)
}

func (t *memoryWire) Poll(out []transport.Incoming) []transport.Incoming {
	out = append(out, t.in...)
	t.in = t.in[:0]
	return out
}

// duo is P's and D's owner, run by hand on one clock.
type duo struct {
	p, d    *owner
	pt, dt  *memoryWire
	now     time.Duration
	next    int
	ready   int
	sent    int
	refused int
}

func newDuo(t *testing.T) *duo {
	t.Helper()
	x := &duo{now: time.Second}
	x.pt, x.dt = &memoryWire{name: "p@1/0/0/0", last: map[wire.Kind][]byte{}}, &memoryWire{name: "d@1/0/0/0", last: map[wire.Kind][]byte{}}
	x.pt.far, x.dt.far = x.dt, x.pt
	var records [2]metadata.Record
	var owners [2]*owner
	report := func(r kvplane.Report) {
		switch r.Kind {
		case kvplane.Ready:
			x.ready++
		case kvplane.Sent:
			x.sent++
		default:
			x.refused++
		}
	}
	for i, name := range []string{"p", "d"} {
		key, agree := wiretest.FakeKey(name)
		at := []*memoryWire{x.pt, x.dt}[i]
		records[i] = metadata.Record{
			Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: name, Generation: 1}, Role: []metadata.Role{metadata.Prefill, metadata.Decode}[i],
			Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Connector: "kvplane", Compatibility: "x", Transport: "wire", Agent: at.name, EngineID: name + "@1", Key: key,
			Layout: metadata.Layout{
				BlockTokens: 16, Physical: 1, Heads: 1, HeadBytes: 16, Order: metadata.HeadsFirst, DType: "u8",
				Regions: []metadata.Region{{Planes: 1, Base: 1 << 20, Length: 64 << 8, Blocks: 64, BlockStride: 256, PlaneStride: 256, HeadStride: 256, TokenStride: 16}},
			},
		}
		cfg := Config{Self: records[i], Transport: at, Times: kvplane.Times{}.WithDefaults(), Report: report, Log: slog.New(slog.DiscardHandler)}
		ask := func(inc metadata.Incarnation, then func([]metadata.Record, error)) {
			far := records[0]
			if inc == records[1].Incarnation {
				far = records[1]
			}
			owners[i].enqueue(func() { then([]metadata.Record{far}, nil) })
		}
		owners[i] = newOwner(context.Background(), cfg, records[i], host{
			now: func() time.Duration { return x.now }, ask: ask, agree: agree, exited: func(metadata.Process) bool { return false },
		})
	}
	x.p, x.d = owners[0], owners[1]
	return x
}

// settle runs both owners until nothing is to be done.
func (x *duo) settle() {
	for x.p.pass() || x.d.pass() {
		x.now += time.Microsecond
	}
}

// transfer hands one request over.
func (x *duo) transfer(o *kvplane.Offer, e *kvplane.Expectation) {
	x.next++
	o.ID = kvplane.TransferID{0: 1, 1: byte(x.next), 2: byte(x.next >> 8), 3: byte(x.next >> 16)}
	e.ID = o.ID
	x.p.offer(o)
	x.d.expect(e)
	x.settle()
}

// TestEventBudget: what the owners of a pair allocate for what happens to them is fixed, from the message as the transport
// hands it over to what they hand the transport: nothing for a look that finds nothing, one message for a message.
func TestEventBudget(t *testing.T) {
	x := newDuo(t)
	offer := func() *kvplane.Offer {
		return &kvplane.Offer{Peer: x.d.self.Incarnation, Tokens: 32, Groups: []kvplane.BlockList{{Blocks: []int32{3, 9}}}}
	}
	expect := func() *kvplane.Expectation {
		return &kvplane.Expectation{Peer: x.p.self.Incarnation, Need: [2]int{0, 32}, Wait: time.Hour, Groups: []kvplane.BlockList{{Blocks: []int32{7, 2}}}}
	}
	for range 300 { // tables and lists find their size
		x.transfer(offer(), expect())
	}
	if x.ready != 300 || x.sent != 300 || x.refused != 0 {
		t.Fatalf("%d ready, %d sent, %d refused; want 300, 300, 0", x.ready, x.sent, x.refused)
	}
	e := expect()
	e.ID = kvplane.TransferID{0: 2}
	x.d.expect(e) // registered, and waits for its offer
	x.settle()
	register, status := x.dt.last[wire.KindWriteRequest], x.pt.last[wire.KindStatus]
	x.pt.last, x.dt.last = nil, nil
	again := func(to *owner, at *memoryWire, body []byte) func() {
		return func() {
			at.deliver(transport.Incoming{Kind: transport.MessageReceived, Agent: at.far.name, Body: body})
			to.pass()
		}
	}
	for _, c := range []struct {
		name   string
		budget float64
		run    func()
	}{
		{"P looks, and finds nothing", 0, func() { x.p.pass() }},
		{"D looks, and finds nothing", 0, func() { x.d.pass() }},
		{"D takes in a STATUS", 1, again(x.d, x.dt, status)},
		{"P takes in a REGISTER and answers it, and D takes that in", 4, func() { again(x.p, x.pt, register)(); x.d.pass() }},
		{"a whole transfer, on both sides, six of them the engines' own words", 32, func() { x.transfer(offer(), expect()) }},
	} {
		for range 20 {
			c.run()
		}
		if got := testing.AllocsPerRun(100, c.run); got > c.budget {
			t.Errorf("%s: %v allocations; its budget is %v", c.name, got, c.budget)
		} else {
			t.Logf("%s: %v allocations of at most %v", c.name, got, c.budget)
		}
	}
	if n := x.d.drops[core.DropForged] + x.d.drops[core.DropMalformed] + x.p.drops[core.DropForged] + x.p.drops[core.DropMalformed]; n > 0 {
		t.Errorf("%d messages were not taken in", n)
	}
}

// TestPollBudget: a look that finds nothing allocates nothing, however a transport looks.
func TestPollBudget(t *testing.T) {
	for _, name := range []string{"tcp", "nixl"} {
		t.Run(name, func(t *testing.T) {
			tr := newTransport(t, name) // skips without NIXL
			room, free, err := memory.Allocate(4096)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := tr.Open("x@1/0/0/0", []memory.Region{memory.Of(room)}); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
				if err := free(); err != nil {
					t.Error(err)
				}
			}()
			var in []transport.Incoming
			const budget = 0
			if got := testing.AllocsPerRun(1000, func() { in = tr.Poll(in[:0]) }); got > budget || len(in) > 0 {
				t.Errorf("%v allocations a look, and %d things found; want at most %v, and none", got, len(in), budget)
			}
		})
	}
}
