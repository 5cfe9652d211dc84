package embed

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// TestRankStates: memory comes before the agent, orders after it; what is not mapped or makes no sense is refused.
func TestRankStates(t *testing.T) {
	g := pdkvtest.NewGateway(t)
	e := &engine{t: t, tp: 1}
	regions, _ := e.cache()
	r, err := OpenRank(config(t, fmt.Sprintf(`{kind: rank, engine: e, compatibility: c, gateway: {url: %q, token_file: %q}, log: {level: error},
		transport: {name: tcp}, cache: {block_tokens: %d, heads: %d, head_bytes: %d, dtype: f32}}`,
		g.URL, g.Token(t, "e", metadata.Both), blockTokens, heads, headBytes)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	orders := sched.Orders{Abandon: []sched.Abandonment{{ID: kvplane.TransferID{1}}}}.Marshal()
	unmapped := regions[0]
	unmapped.Base = 1 << 20
	large := regions[0]
	large.Length = 1 << 46
	for i, c := range []struct {
		err  error
		want Fault
	}{
		{r.Publish(), State}, {r.Do(orders), State}, {r.Register(nil), Argument}, {r.Register([]metadata.Region{unmapped}), Argument},
		{r.Register([]metadata.Region{large}), Argument}, {r.Register([]metadata.Region{{}}), Argument}, {r.Register(regions), 0},
		{r.Publish(), 0}, {r.Publish(), State}, {r.Register(regions), State}, {r.Do(orders), 0}, {r.Do(nil), 0}, {r.Do([]byte("no")), Argument},
		{r.Close(), 0}, {r.Close(), 0}, {r.Do(orders), State}, {r.Publish(), State},
	} {
		if got := FaultOf(c.err); got != c.want || (c.err == nil) != (c.want == 0) {
			t.Errorf("%d: %v, fault %d; want %d", i, c.err, got, c.want)
		}
	}
}

// TestBroken: a rank whose engine has a newer run says so, and its transfers end; one whose agent cannot be opened is not published.
func TestBroken(t *testing.T) {
	g := pdkvtest.NewGateway(t)
	newEngine(t, g, "e", metadata.Both, 1, "")
	open := func(name, heads string) (*engine, error) {
		s, err := OpenScheduler(config(t, fmt.Sprintf(`{kind: scheduler, engine: %s}`, name)))
		if err != nil {
			t.Fatal(err)
		}
		e := &engine{t: t, tp: 1, scheduler: s}
		regions, _ := e.cache()
		r, err := OpenRank(config(t, fmt.Sprintf(`{kind: rank, engine: %s, generation: 5, compatibility: same, gateway: {url: %q, token_file: %q},
			log: {level: error}, transport: {name: tcp}, cache: {block_tokens: %d, heads: %s, head_bytes: %d, dtype: f32}}`,
			name, g.URL, g.Token(t, name, metadata.Both), blockTokens, heads, headBytes)))
		if err != nil {
			t.Fatal(err)
		}
		e.ranks = []*Rank{r}
		t.Cleanup(e.close)
		if err := r.Register(regions); err != nil {
			t.Fatal(err)
		}
		return e, r.Publish()
	}
	e, err := open("e", "2")
	if err != nil {
		t.Fatal(err)
	}
	id := kvplane.NewTransferID() // comes to its end all the same
	if err := e.scheduler.Hear((&sched.RankReport{Engine: metadata.Incarnation{Engine: "e", Generation: 5}}).Marshal()); err != nil {
		t.Fatal(err)
	}
	if err := e.scheduler.Expect(&Transfer{ID: id, Peer: metadata.Incarnation{Engine: "nobody", Generation: 1}, To: 7, Groups: list(5, 2)}); err != nil {
		t.Fatal(err)
	}
	e.until(func() bool { return e.find(Broken, kvplane.TransferID{}) != nil })
	if err := e.scheduler.Cancel(id, "broken"); err != nil {
		t.Fatal(err)
	}
	e.until(func() bool { return e.find(Closed, id) != nil })
	if x := e.find(Broken, kvplane.TransferID{}); x.bytes <= 5 {
		t.Errorf("superseded: %+v; want the newer generation", x)
	}
	f, err := open("f", "999")
	if FaultOf(err) != System {
		t.Errorf("heads that do not fit: %v; want that the rank is not published", err)
	}
	orders := sched.Orders{Abandon: []sched.Abandonment{{ID: id}}}.Marshal()
	if err := f.ranks[0].Do(orders); FaultOf(err) != State {
		t.Errorf("orders for a rank without an agent: %v", err)
	}
	if n := 0; f.ranks[0].Collect(nil, &n) != nil || n != 0 {
		t.Errorf("a rank without an agent says %d bytes", n)
	}
}

// TestCloseLeavesNothing: after the last handle is closed no goroutine of the plane is left (of descriptors: testdata/pair.c in kvplane/capi).
func TestCloseLeavesNothing(t *testing.T) {
	g := pdkvtest.NewGateway(t)
	cycle := func() {
		p, d := newEngine(t, g, "prefill-0", metadata.Prefill, 2, ""), newEngine(t, g, "decode-0", metadata.Decode, 1, "")
		watch(t, d)
		id := admitted(t, g, p, d)
		if err := d.scheduler.Expect(&Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2)}); err != nil {
			t.Fatal(err)
		}
		d.step() // closed in the middle of it
		p.close()
		d.close()
	}
	cycle()
	left := ""
	for range 1000 { // one that has said that it ends may still be on its last instruction
		if left = goroutines(); left == "" {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("are left:\n%s", left)
}

// goroutines returns the stacks of those that belong to the plane.
func goroutines() string {
	stacks, own := make([]byte, 1<<20), ""
	stacks = stacks[:runtime.Stack(stacks, true)]
	for one := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(one, "pdrouter/kvplane.") || strings.Contains(one, "embed.(*Rank)") || strings.Contains(one, "embed.(*controlServer)") {
			own += one + "\n\n"
		}
	}
	return own
}

// TestMemory: every region lies in one stretch, and stretches do not overlap; memory that only touches stays apart, as a
// device may have given it out apart.
func TestMemory(t *testing.T) {
	region := func(base, length uint64, device int) metadata.Region {
		return metadata.Region{Base: base, Length: length, Device: device}
	}
	got := memoryOf("vram", []metadata.Region{region(300, 100, 0), region(100, 100, 0), region(150, 100, 0), region(100, 100, 0), region(120, 10, 0), region(150, 10, 1), region(250, 50, 0)})
	want := []memory.Region{
		{Base: 100, Length: 150, Type: "vram"}, {Base: 250, Length: 50, Type: "vram"}, {Base: 300, Length: 100, Type: "vram"},
		{Base: 150, Length: 10, Type: "vram", Device: 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v; want %+v", got, want)
	}
	if got := memoryOf("dram", []metadata.Region{region(100, 100, 0)}); !slices.Equal(got, []memory.Region{{Base: 100, Length: 100}}) {
		t.Errorf("got %+v", got)
	}
}
