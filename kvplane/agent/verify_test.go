package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// TestRegisterWithinRoom: a write request of blocks that its sender does not have is malformed before its runs become
// ids, each of which would take four bytes.
func TestRegisterWithinRoom(t *testing.T) {
	list := func(start, n int) kvplane.BlockList {
		var l kvplane.BlockList
		for i := range n {
			l.Blocks = append(l.Blocks, int32(start+i))
		}
		return l
	}
	for name, c := range map[string]struct {
		groups []kvplane.BlockList
		room   []int
		ok     bool
	}{
		"all of both":       {[]kvplane.BlockList{list(0, 8), list(0, 4)}, []int{8, 4}, true},
		"one group of two":  {[]kvplane.BlockList{list(0, 8)}, []int{8, 4}, true},
		"none":              {nil, nil, true},
		"an id too high":    {[]kvplane.BlockList{list(0, 1), list(4, 1)}, []int{8, 4}, false},
		"a run too long":    {[]kvplane.BlockList{list(0, 9)}, []int{8}, false},
		"more than it has":  {[]kvplane.BlockList{{Blocks: []int32{1, 1, 1, 1, 1}}}, []int{4}, false},
		"a group too many":  {[]kvplane.BlockList{list(0, 1), list(0, 1)}, []int{8}, false},
		"a million":         {[]kvplane.BlockList{list(0, 1<<20)}, []int{64}, false},
		"a broken record's": {[]kvplane.BlockList{list(0, 1)}, []int{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := wire.Append(nil, &wire.Message{Kind: wire.KindWriteRequest, Seq: 1, Groups: c.groups})
			m, err := wire.ParseWithin(b, c.room)
			if (err == nil) != c.ok || err != nil && !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("%v; want %v", err, c.ok)
			}
			if err == nil && !cmp.Equal(m.Groups, c.groups) {
				t.Errorf("groups are %v", m.Groups)
			}
			if n := testing.AllocsPerRun(10, func() { _, _ = wire.ParseWithin(b, c.room) }); !c.ok && n > 8 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestForeignBlocksAreMalformed: the owner takes the sender's own record for what it can have.
func TestForeignBlocksAreMalformed(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		whole(t, p, d)
		blocks := d.records[0].Layout.Regions[0].Blocks / d.records[0].Layout.Physical
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, []kvplane.BlockList{{Blocks: []int32{int32(blocks)}}})
		time.Sleep(time.Second)
		if s := p.agents[0].Status(); s.Dropped["malformed"] == 0 || s.WriteRequests > 1 {
			t.Errorf("%d write requests, dropped %v", s.WriteRequests, s.Dropped)
		}
		d.abandon(id)
		d.await(id, kvplane.Reusable)
	})
}

// TestSessionBudget: the write requests of one session have at most so many blocks together, and what has ended makes
// room again.
func TestSessionBudget(t *testing.T) {
	p := core.NewProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Minute, Groups: []kvplane.BlockList{{Blocks: make([]int32, 4)}, {Blocks: make([]int32, 1)}}}
	register := func(seq int) wire.Status {
		t.Helper()
		out := p.Step(core.Event{Kind: core.EvWriteRequest, At: 1, Peer: 1, Inc: consumerRun, Seq: uint64(seq), ID: transferNumber(seq), Msg: m, Budget: 10}, nil)
		return out[len(out)-1].Status
	}
	for seq, want := range map[int]wire.State{1: wire.Waiting, 2: wire.Waiting} {
		if got := register(seq); got.State != want {
			t.Errorf("%d: %+v; want %s", seq, got, want)
		}
	}
	if got := register(3); got.State != wire.NotBegun || got.Reason != kvplane.Full {
		t.Errorf("a third: %+v; want not_begun(full)", got)
	}
	p.Step(core.Event{Kind: core.EvAbandon, At: 2, ID: transferNumber(1)}, nil)
	if got := register(4); got.State != wire.Waiting {
		t.Errorf("after one has ended: %+v; want waiting", got)
	}
	if n := p.Sessions[1].Blocks; n != 10 {
		t.Errorf("%d blocks are counted; want 10", n)
	}
	// D may have its blocks back, and register them again, before P hears how a write has ended.
	p.Step(core.Event{Kind: core.EvOffer, At: 3, ID: transferNumber(4), Inc: consumerRun, Offer: &kvplane.Offer{Peer: consumerRun}}, nil)
	p.Step(core.Event{Kind: core.EvConsumers, At: 3, ID: transferNumber(4), Owed: []core.PeerID{1}}, nil)
	if n := p.Sessions[1].Blocks; n != 5 {
		t.Errorf("%d blocks are counted while one is being written; want 5", n)
	}
}

// consumerRun is a consumer's engine.
var consumerRun = metadata.Incarnation{Engine: "far", Generation: 1}

func transferNumber(i int) kvplane.TransferID {
	return kvplane.TransferID{0: 1, 1: byte(i), 2: byte(i >> 8)}
}
