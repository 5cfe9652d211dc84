package nixltransport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// laid is two agents over NIXL whose memory holds the regions of a layout, and the plan between them.
type laid struct {
	p, d         *transporttest.Node
	ps, ds       plantest.Spec
	pair         *plan.Pair
	from, into   []transfer.BlockList
	tokens       int
	local, there []int32
	ranges       []transfer.Range
}

// layOut opens P and D with the given layouts and plans a transfer of so many tokens in scattered blocks.
func layOut(t testing.TB, p, d plantest.Spec, tokens int) *laid {
	t.Helper()
	x := &laid{ps: p.WithDefaults(), ds: d.WithDefaults(), tokens: tokens}
	open := func(name string, s *plantest.Spec, fill byte) (*transporttest.Node, metadata.Record) {
		size := uint64(0)
		for _, r := range s.Records(name)[0].Layout.Regions {
			size += r.Length
		}
		n := transporttest.OpenNode(t, newNIXL(t), name+"@1", int(size), fill)
		s.Base = n.Base
		return n, s.Records(name)[0]
	}
	var pr, dr metadata.Record
	x.p, pr = open("p", &x.ps, 0)
	x.d, dr = open("d", &x.ds, 0xee)
	transporttest.Scribble(x.p.Mem, 5)
	x.p.Store()
	transporttest.Joined(x.p, x.d)
	var err error
	if x.pair, err = plan.New(pr, dr, plan.Allow{}); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 7))
	draw := func(s plantest.Spec) []transfer.BlockList {
		l := transfer.BlockList{}
		for _, id := range rng.Perm(s.Blocks / s.Physical)[:(tokens+s.Logical-1)/s.Logical] {
			l.Blocks = append(l.Blocks, int32(id))
		}
		return []transfer.BlockList{l}
	}
	x.from, x.into = draw(x.ps), draw(x.ds)
	x.replan(t)
	return x
}

// replan plans the transfer both ways.
func (x *laid) replan(t testing.TB) {
	t.Helper()
	var err error
	if x.ranges, err = x.pair.Plan(x.ranges[:0], x.tokens, [2]int{0, x.tokens}, x.from, x.into); err != nil {
		t.Fatal(err)
	}
	x.local, x.there, err = x.pair.PlanDescriptors(x.local[:0], x.there[:0], x.tokens, [2]int{0, x.tokens}, x.from, x.into)
	if err != nil {
		t.Fatal(err)
	}
}

// prepare polls until the places are ready.
func (x *laid) prepare(t testing.TB) transport.Preparer {
	t.Helper()
	pr := x.p.Transport.(transport.Preparer)
	local, remote := x.pair.Descriptors()
	for i := 0; !pr.Prepare("d@1", local, remote); i++ {
		if i > transfer.MaxPlaces {
			t.Fatal("the places are not ready")
		}
		x.p.Poll()
		x.d.Poll()
	}
	return pr
}

// image is D's memory after the plan's ranges have been copied by hand.
func (x *laid) image() []byte {
	out := bytes.Repeat([]byte{0xee}, len(x.d.Mem))
	for _, r := range x.ranges {
		copy(out[r.Remote-x.d.Base:][:r.Length], x.p.Mem[r.Local-x.p.Base:][:r.Length])
	}
	return out
}

// TestNIXLPreparedWrites compares what a write of places brings with what the same transfer's ranges bring.
func TestNIXLPreparedWrites(t *testing.T) {
	layers := [][]int{{0, 1, 2}}
	for _, tc := range []struct {
		name string
		p, d plantest.Spec
	}{
		{"equal blocks", plantest.Spec{Heads: 4, Logical: 4, HeadBytes: 32, Planes: 2, Stages: layers}, plantest.Spec{Heads: 4, Logical: 4, HeadBytes: 32, Planes: 2, Stages: layers}},
		{"small to large", plantest.Spec{Heads: 2, Logical: 2, HeadBytes: 8, Blocks: 128, Stages: layers}, plantest.Spec{Heads: 2, Logical: 8, Physical: 2, HeadBytes: 8, Stages: layers}},
		{"large to small, split", plantest.Spec{Heads: 4, Logical: 8, HeadBytes: 8, Stages: layers}, plantest.Spec{TP: 2, Heads: 4, Logical: 4, Physical: 2, HeadBytes: 8, Blocks: 256, Stages: layers}},
		{"heads outside", plantest.Spec{Heads: 2, Logical: 4, HeadBytes: 16, Outside: true, Stages: layers}, plantest.Spec{Heads: 2, Logical: 4, HeadBytes: 16, Stride: 200, Stages: layers}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := layOut(t, tc.p, tc.d, 61)
			want := x.image()
			if err := x.p.Transport.Write("d@1", 1, x.ranges, []byte("ranges")); err != nil {
				t.Fatal(err)
			}
			x.d.AwaitMessage([]byte("ranges"), x.p)
			x.d.Load()
			if !bytes.Equal(x.d.Mem, want) {
				t.Fatal("the ranges brought other bytes")
			}
			if err := x.p.AwaitEnd(1, x.d); err != nil {
				t.Fatal(err)
			}
			transporttest.Paint(x.d.Mem, 0xee)
			x.d.Store()
			if err := x.prepare(t).WritePrepared("d@1", 2, x.local, x.there, []byte("places")); err != nil {
				t.Fatal(err)
			}
			x.d.AwaitMessage([]byte("places"), x.p)
			x.d.Load()
			if !bytes.Equal(x.d.Mem, want) {
				t.Fatal("the places brought other bytes than the ranges")
			}
			if err := x.p.AwaitEnd(2, x.d); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d ranges, %d places", len(x.ranges), len(x.local))
		})
	}
}

// TestNIXLPreparedLists follows the lists of a peer through its life.
func TestNIXLPreparedLists(t *testing.T) {
	s := plantest.Spec{Heads: 2, Logical: 4, HeadBytes: 16, Planes: 2, Blocks: 2048, Stages: [][]int{{0, 1}}}
	x := layOut(t, s, s, 40)
	tr := x.p.Transport.(*Transport)
	local, remote := x.pair.Descriptors()
	write := func(id uint64) error { return tr.WritePrepared("d@1", id, x.local, x.there, []byte{byte(id)}) }

	if tr.Prepare("nobody@1", local, remote) || tr.Prepare("d@1", local, remote) {
		t.Fatal("ready at once")
	}
	if err := write(1); err == nil {
		t.Fatal("posted before the places were ready")
	}
	x.p.Poll()
	if tr.Prepare("d@1", local, remote) {
		t.Fatalf("%d places were ready after one poll; want %d a poll", len(local)*local[0].Places(), placesPerPoll)
	}
	tr.Disconnect("d@1") // with half a list
	if len(tr.preparing) != 0 {
		t.Error("a peer that has gone is still prepared for")
	}
	x.p.Connect(x.d)
	x.prepare(t)
	if err := write(2); err != nil {
		t.Fatal(err)
	}
	tr.Disconnect("d@1") // perhaps with the write in progress: the lists must outlive it
	if err := x.p.AwaitEnd(2, x.d); err != nil {
		t.Fatal(err)
	}
	if len(tr.peers) != 0 {
		t.Error("the peer is not forgotten after its last write")
	}

	for name, grids := range map[string][]transfer.StridedRegion{
		"outside of the peer's memory": {{Base: x.d.Base, BlockStride: 1 << 40, Length: 8, Blocks: 2, Units: 1}},
		"empty":                        {{Base: x.d.Base, Length: 8, Units: 1}},
		"wraps around":                 {{Base: x.d.Base, BlockStride: 1 << 63, Length: 8, Blocks: 4, Units: 1}},
	} {
		x.p.Connect(x.d)
		for range 100 {
			if tr.Prepare("d@1", local[:1], grids) {
				t.Errorf("%s: ready", name)
			}
			x.p.Poll()
		}
		if err := tr.Write("d@1", 3, x.ranges, nil); err != nil {
			t.Errorf("%s: there is always Write: %v", name, err)
		}
		if err := x.p.AwaitEnd(3, x.d); err != nil {
			t.Fatal(err)
		}
		tr.Disconnect("d@1")
	}

	x.p.Connect(x.d)
	x.prepare(t)
	x.there[3] = int32(len(remote) * remote[0].Places())
	if err := write(4); err == nil {
		t.Error("a place beyond the list was taken")
	}
	// The cleanup closes the transport with the lists still there.
}

// TestNIXLMemoryTypes checks what NIXL is asked to register and to describe for memory on a GPU.
func TestNIXLMemoryTypes(t *testing.T) {
	set := memory.Set{
		{Base: 0x1000, Length: 0x1000},
		{Base: 0x4000, Length: 0x1000, Type: "vram", Device: 3},
		{Base: 0x8000, Length: 0x1000, Type: "dram", Device: 7},
		{Base: 0xa000, Length: 0x1000, Type: "vram"},
	}
	got, err := memoryOf(set)
	want := "[{0 [{4096 4096 0} {32768 4096 0}]} {1 [{16384 4096 3} {40960 4096 0}]}]"
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("registered %v, %v; want %v", got, err, want)
	}
	side := sideOf{whose: "the peer's", spans: set}
	r, err := side.region(0x4010, 0x20)
	if want := (nixl.Region{Address: 0x4010, Length: 0x20, Device: 3}); err != nil || r != want || side.kind != nixl.VRAM {
		t.Errorf("described as %v of kind %d, %v; want %v in VRAM", r, side.kind, err, want)
	}
	if r, err = side.region(0xa000, 1); err != nil || r.Device != 0 {
		t.Errorf("another device: %v, %v", r, err)
	}
	if _, err := side.region(0x1000, 1); err == nil {
		t.Error("a write to both types of memory was taken")
	}
	for _, m := range []memory.Region{{Base: 1, Length: 1, Type: "disk"}, {Base: 1, Length: 1, Type: "vram", Device: -1}} {
		if _, err := memoryOf(memory.Set{m}); err == nil {
			t.Errorf("%+v was taken", m)
		}
	}
}

// BenchmarkPost posts a write of scattered blocks over NIXL: its ranges, or places in prepared lists. The plan and
// the write's end are not in µs/post; the blocks are small, so that copying them, which the post may do, is little of it.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{16, 1024} {
		s := plantest.Spec{Heads: 8, Logical: 16, Blocks: 2 * n, Stages: [][]int{{0}}}
		for _, prepared := range []bool{false, true} {
			name := fmt.Sprintf("%d blocks/ranges", n)
			if prepared {
				name = fmt.Sprintf("%d blocks/prepared", n)
			}
			b.Run(name, func(b *testing.B) {
				x := layOut(b, s, s, 16*n)
				pr := x.prepare(b)
				id := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					id++
					var err error
					if prepared {
						err = pr.WritePrepared("d@1", id, x.local, x.there, nil)
					} else {
						err = x.p.Transport.Write("d@1", id, x.ranges, nil)
					}
					if err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if err := x.p.AwaitEnd(id, x.d); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "µs/post")
			})
		}
	}
}
