package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// planeVariable makes the test binary one side of the pairs below: "role generation pair,pair".
const planeVariable = "PDROUTER_TEST_PLANE_PEER"

const (
	planeSlots = 4  // transfers of a pair at a time, each with blocks of its own
	slotBlocks = 16 // of these
)

// planePairs are the pairs of engines that hand over between two processes.
var planePairs = []struct {
	name      string
	ptp, dtp  int
	heads     int
	transfers int
}{
	{name: "TP 2 to 4", ptp: 2, dtp: 4, heads: 4, transfers: 70},
	{name: "TP 4 to 2", ptp: 4, dtp: 2, heads: 4, transfers: 70},
	{name: "MLA 4 to 2", ptp: 4, dtp: 2, heads: 1, transfers: 60},
}

// planeOrder is what a test tells the other side's process about one transfer.
type planeOrder struct {
	Do       string // meet, fill, offer, expect, verify, over
	Pair     int
	Peers    []metadata.Record
	Transfer kvplane.TransferID
	Tokens   int
	List     kvplane.BlockList
}

// planeSide is one role of several pairs in one process.
type planeSide struct {
	rigs map[int]*rig
	far  map[int]*rig
	dir  *fakeDirectory
}

func openPlaneSide(t *testing.T, role metadata.Role, gen uint64, pairs []int) *planeSide {
	t.Helper()
	s := &planeSide{rigs: map[int]*rig{}, far: map[int]*rig{}, dir: &fakeDirectory{records: map[string][]metadata.Record{}}}
	for _, i := range pairs {
		c := planePairs[i]
		sp := plantest.Spec{TP: c.ptp, Heads: c.heads, Logical: 4, Planes: 2, HeadBytes: 16, Blocks: planeSlots * slotBlocks, Stages: [][]int{{0, 1}}}
		if role == metadata.Decode {
			sp.TP = c.dtp
		}
		if c.heads == 1 {
			sp.Planes = 1
		}
		s.rigs[i] = newRig(t, sp, rigOptions{
			transport: func() transport.Transport { return newTransport(t, "nixl") },
			directory: s.dir, role: role, name: fmt.Sprintf("%s-%d", role, i), gen: gen, times: patientTimes,
		})
	}
	return s
}

// meet makes the other side of a pair known.
func (s *planeSide) meet(pair int, peers []metadata.Record) {
	s.dir.mu.Lock()
	s.dir.records[peers[0].Engine] = peers
	s.dir.mu.Unlock()
	s.far[pair] = &rig{inc: peers[0].Incarnation}
}

// obey does what an order says and returns how many bytes are wrong.
func (s *planeSide) obey(o planeOrder) int {
	r, far, groups := s.rigs[o.Pair], s.far[o.Pair], []kvplane.BlockList{o.List}
	switch o.Do {
	case "meet":
		s.meet(o.Pair, o.Peers)
	case "fill":
		r.fill(o.Transfer, o.List, o.Tokens)
	case "offer":
		r.offer(o.Transfer, far, o.Tokens, groups)
	case "expect":
		r.expect(o.Transfer, far, [2]int{o.List.First, o.Tokens}, groups)
	case "verify":
		r.await(o.Transfer, kvplane.Ready)
		return r.wrong(o.Transfer, o.List, o.List.First, o.Tokens)
	case "over":
		r.await(o.Transfer, kvplane.Sent)
	}
	return 0
}

// TestPlanePeerProcess is the other side of the tests below; on its own it does nothing.
func TestPlanePeerProcess(t *testing.T) {
	f := strings.Fields(os.Getenv(planeVariable))
	if len(f) != 3 {
		t.Skip("only as the peer process of another test")
	}
	gen, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	var pairs []int
	if err := json.Unmarshal([]byte("["+f[2]+"]"), &pairs); err != nil {
		t.Fatal(err)
	}
	s := openPlaneSide(t, metadata.Role(f[0]), gen, pairs)
	answer := transporttest.Report{Kind: "ready"}
	for _, i := range pairs {
		answer.Ranks = append(answer.Ranks, s.rigs[i].records...)
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.NewFile(3, "reports"))
	for out.Encode(answer) == nil {
		var o planeOrder
		if in.Decode(&o) != nil {
			return
		}
		answer = transporttest.Report{Kind: "done", ID: uint64(s.obey(o))}
	}
}

// plane is both sides of some pairs: one here, the other one in a process.
type plane struct {
	t     *testing.T
	near  *planeSide
	child *transporttest.Process
	role  metadata.Role // of this process
}

func openPlane(t *testing.T, here metadata.Role, gen uint64, pairs ...int) *plane {
	t.Helper()
	there := metadata.Decode
	if here == metadata.Decode {
		there = metadata.Prefill
	}
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(pairs), " ", ","), "[]")
	pl := &plane{t: t, role: here}
	started := make(chan struct{})
	go func() { // agents take their time: both sides at once
		defer close(started)
		pl.near = openPlaneSide(t, here, gen, pairs)
	}()
	pl.child = transporttest.StartProcess(t, "TestPlanePeerProcess", fmt.Sprintf("%s=%s %d %s", planeVariable, there, gen, list))
	<-started
	if pl.near == nil {
		t.FailNow()
	}
	ranks := pl.child.Ranks
	for _, i := range pairs {
		n := planePairs[i].dtp
		if here == metadata.Decode {
			n = planePairs[i].ptp
		}
		pl.near.meet(i, ranks[:n])
		ranks = ranks[n:]
		pl.ask(planeOrder{Do: "meet", Pair: i, Peers: pl.near.rigs[i].records})
	}
	return pl
}

// ask has the other process do something and returns how many bytes are wrong there.
func (pl *plane) ask(o planeOrder) int {
	pl.t.Helper()
	if err := pl.child.In.Encode(o); err != nil {
		pl.t.Fatal(err)
	}
	return int(pl.child.Await("done", nil).ID)
}

// do has the side of a role do something.
func (pl *plane) do(role metadata.Role, o planeOrder) int {
	pl.t.Helper()
	if role == pl.role {
		return pl.near.obey(o)
	}
	return pl.ask(o)
}

// shipment is one transfer of random size.
type shipment struct {
	pair     int
	id       kvplane.TransferID
	tokens   int
	from, to kvplane.BlockList
}

// load draws one transfer of random size in its slot.
func load(rng *rand.Rand, pair, slot int) shipment {
	pick := func(n int) []int32 { // in any order
		var ids []int32
		for _, b := range rng.Perm(slotBlocks)[:n] {
			ids = append(ids, int32(slot*slotBlocks+b))
		}
		return ids
	}
	x := shipment{pair: pair, id: kvplane.NewTransferID(), tokens: 1 + rng.IntN(4*slotBlocks)}
	n := (x.tokens + 3) / 4
	held := rng.IntN(min(n, 3)) // blocks of the prefix that D holds already
	x.from, x.to = kvplane.BlockList{Blocks: pick(n)}, kvplane.BlockList{First: 4 * held, Blocks: pick(n - held)}
	return x
}

func (x shipment) offer() planeOrder {
	return planeOrder{Do: "offer", Pair: x.pair, Transfer: x.id, Tokens: x.tokens, List: x.from}
}

func (x shipment) expect() planeOrder {
	return planeOrder{Do: "expect", Pair: x.pair, Transfer: x.id, Tokens: x.tokens, List: x.to}
}

// ship begins one transfer, in either order of offer and write request.
func (pl *plane) ship(rng *rand.Rand, pair, slot int) shipment {
	pl.t.Helper()
	x := load(rng, pair, slot)
	fill := x.offer()
	fill.Do = "fill"
	pl.do(metadata.Prefill, fill)
	if rng.IntN(2) == 0 {
		pl.do(metadata.Prefill, x.offer())
		pl.do(metadata.Decode, x.expect())
	} else {
		pl.do(metadata.Decode, x.expect())
		pl.do(metadata.Prefill, x.offer())
	}
	return x
}

// land waits for a transfer and checks every byte of it.
func (pl *plane) land(x shipment) {
	pl.t.Helper()
	o := planeOrder{Do: "verify", Pair: x.pair, Transfer: x.id, Tokens: x.tokens, List: x.to}
	if wrong := pl.do(metadata.Decode, o); wrong > 0 {
		pl.t.Errorf("%s: %d bytes of %d tokens are wrong", planePairs[x.pair].name, wrong, x.tokens)
	}
	o.Do = "over"
	pl.do(metadata.Prefill, o)
}

// round hands n requests over, as many at a time as there are slots.
func (pl *plane) round(rng *rand.Rand, pair, n int) {
	pl.t.Helper()
	var under []shipment
	for i := range n {
		if len(under) == planeSlots {
			pl.land(under[0])
			under = under[1:]
		}
		under = append(under, pl.ship(rng, pair, i%planeSlots))
	}
	for _, x := range under {
		pl.land(x)
	}
}

// empty checks that this side holds nothing any more: no block, no write request, no handle.
func (pl *plane) empty() {
	pl.t.Helper()
	for _, i := range slices.Sorted(maps.Keys(pl.near.rigs)) {
		r := pl.near.rigs[i]
		settled(pl.t, r)
		for _, a := range r.agents {
			handles := make(chan int, 1)
			a.owner.engineCall(func() { handles <- a.owner.cfg.Transport.(*nixltransport.Transport).Writes() })
			if n := <-handles; n > 0 {
				pl.t.Errorf("%s holds %d handles", a.Record().Agent, n)
			}
		}
	}
}

// end closes this side and kills the other one.
func (pl *plane) end() {
	pl.t.Helper()
	for _, r := range pl.near.rigs {
		r.closeAll()
	}
	pl.child.Kill()
}

// leftovers fails if there are more goroutines than before, after a while.
func leftovers(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(transporttest.Patience); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines; %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestPlaneOverNIXL hands 200 requests of random sizes over between two processes over real NIXL and checks every
// byte. Then the receiver is killed -9 in mid-transfer: the sender gets all its blocks back, and when both have been
// started again under new generations everything works. The same with the sender killed.
func TestPlaneOverNIXL(t *testing.T) {
	newTransport(t, "nixl") // skips without it
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("KVPLANE_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("KVPLANE_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	before := runtime.NumGoroutine()

	pl := openPlane(t, metadata.Prefill, 1, 0, 1, 2)
	for i, c := range planePairs {
		start := time.Now()
		pl.round(rng, i, c.transfers)
		t.Logf("%s: %d transfers in %v", c.name, c.transfers, time.Since(start).Round(time.Millisecond))
	}
	pl.empty()
	pl.killed(rng)
	pl.end()
	leftovers(t, before)

	for i, here := range []metadata.Role{metadata.Prefill, metadata.Decode} {
		pl := openPlane(t, here, uint64(2+i), 0)
		pl.round(rng, 0, 8)
		if here == metadata.Decode {
			pl.killed(rng)
		}
		pl.end()
		leftovers(t, before)
	}
	pl = openPlane(t, metadata.Decode, 4, 0)
	pl.round(rng, 0, 8)
	pl.empty()
	pl.end()
	leftovers(t, before)
}

// killed kills the other process while transfers of the first pair are under way, and checks that nothing is left here.
func (pl *plane) killed(rng *rand.Rand) {
	pl.t.Helper()
	var under []shipment
	for i := range 24 { // six share a slot; nobody looks at these bytes
		x := load(rng, 0, i%planeSlots)
		under = append(under, x)
		pl.do(metadata.Decode, x.expect())
	}
	for _, x := range under {
		if pl.role == metadata.Prefill {
			pl.near.obey(x.offer())
		} else if err := pl.child.In.Encode(x.offer()); err != nil { // not waiting for each
			pl.t.Fatal(err)
		}
	}
	r, open := pl.near.rigs[0], 0
	for len(r.kinds(under[0].id)) == 0 { // it has begun
		time.Sleep(transporttest.Idle)
	}
	for _, x := range under {
		if len(r.kinds(x.id)) < len(r.agents) {
			open++
		}
	}
	pl.child.Kill()
	for _, x := range under {
		if pl.role == metadata.Prefill {
			for _, rep := range r.await(x.id, kvplane.Sent) {
				if rep.Reason == kvplane.LeaseOver {
					pl.t.Error("the lease was waited for")
				}
			}
			continue
		}
		r.over(x.id)
	}
	pl.t.Logf("the other process was killed with %d of %d transfers under way", open, len(under))
	pl.empty()
}
