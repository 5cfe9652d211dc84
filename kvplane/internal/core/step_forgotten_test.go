package core

import (
	"testing"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// TestLateWriteRequestAfterItsSessionWasForgotten: D has cancelled and settled a write request, and has given its blocks away. P has forgotten D
// meanwhile. A late copy of the write request starts no write.
func TestLateWriteRequestAfterItsSessionWasForgotten(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	d := metadata.Incarnation{Engine: "d", Generation: 1}
	id := kvplane.NewTransferID()
	groups := []kvplane.BlockList{{Blocks: []int32{1, 2}}}
	step := func(e Event) []Effect { return p.Step(e, nil) }
	wr := &wire.Message{Kind: wire.KindWriteRequest, LowWater: 1, Seq: 1, ID: id, Need: [2]int{0, 8}, Groups: groups, Wait: 1e9}
	step(Event{At: 1, Kind: EvWriteRequest, Peer: 1, Inc: d, Seq: 1, ID: id, Msg: wr})
	step(Event{At: 2, Kind: EvCancel, Peer: 1, Inc: d, Seq: 1, ID: id, Msg: &wire.Message{Kind: wire.KindCancel, LowWater: 1, Seq: 1, ID: id}})
	step(Event{At: 3, Kind: EvAck, Peer: 1, Inc: d, Msg: &wire.Message{Kind: wire.KindAck, LowWater: 2}})
	if p.Busy(1) {
		t.Fatal("busy")
	}
	past := p.EndSession(1)
	step(Event{At: 70e9, Kind: EvGone, Inc: d})
	// D is looked up anew, as peer 2, and the same write request comes again. Its MAC is good.
	p.ResumeSession(2, d, past)
	step(Event{At: 70e9 + 1, Kind: EvUp, Peer: 2})
	step(Event{At: 71e9, Kind: EvWriteRequest, Peer: 2, Inc: d, Seq: 1, ID: id, Msg: wr})
	step(Event{At: 71e9 + 1, Kind: EvOffer, ID: id, Inc: d, Offer: &kvplane.Offer{ID: id, Peer: d, Tokens: 8, Groups: groups}})
	for _, x := range step(Event{At: 71e9 + 2, Kind: EvConsumers, ID: id, Owed: []PeerID{2}}) {
		if x.Do == DoPost {
			t.Errorf("P posts the write of number %d, which D had settled as not_begun", x.Seq)
		}
	}
	next := &wire.Message{Kind: wire.KindWriteRequest, LowWater: 2, Seq: 2, ID: id, Need: [2]int{0, 8}, Groups: groups, Wait: 1e9}
	if out := step(Event{At: 71e9 + 3, Kind: EvWriteRequest, Peer: 2, Inc: d, Seq: 2, ID: id, Msg: next}); len(out) == 0 || out[0].Do != DoPost {
		t.Errorf("the next write request of D: %+v; want a write", out)
	}
}
