package core

import (
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// TestTimersDropWhatIsOver: transfers that are over do not stay in memory until their wait would have ended.
func TestTimersDropWhatIsOver(t *testing.T) {
	const n = 5000
	now := time.Duration(1)
	inc := metadata.Incarnation{Engine: "p", Generation: 1}
	dInc := metadata.Incarnation{Engine: "d", Generation: 1}
	c := NewConsumer(kvplane.Times{}.WithDefaults())
	p := NewProducer(kvplane.Times{}.WithDefaults())
	{ // one that waits all the time, as there always is under traffic
		id := kvplane.NewTransferID()
		c.Step(Event{At: now, Kind: EvExpect, ID: id, Inc: inc, Expect: &kvplane.Expectation{ID: id, Peer: inc, Need: [2]int{0, 8}, Wait: 5 * time.Minute}}, nil)
		p.Step(Event{At: now, Kind: EvOffer, ID: id, Inc: dInc, Offer: &kvplane.Offer{ID: id, Peer: dInc, Tokens: 8}}, nil)
	}
	for i := range n {
		id := kvplane.NewTransferID()
		seq := uint64(i + 1)
		groups := []kvplane.BlockList{{Blocks: make([]int32, 8)}}
		c.Step(Event{At: now, Kind: EvExpect, ID: id, Inc: inc, Expect: &kvplane.Expectation{ID: id, Peer: inc, Need: [2]int{0, 8}, Wait: time.Hour, Groups: groups}}, nil)
		c.Step(Event{At: now, Kind: EvProducers, ID: id, Links: []Link{{Peer: 1, Writes: true}}}, nil)
		wr := &wire.Message{Kind: wire.KindWriteRequest, LowWater: seq, Seq: seq, ID: id, Need: [2]int{0, 8}, Wait: time.Hour, Groups: groups}
		p.Step(Event{At: now, Kind: EvWriteRequest, Peer: 1, Inc: dInc, Seq: seq, ID: id, Msg: wr}, nil)
		p.Step(Event{At: now, Kind: EvOffer, ID: id, Inc: dInc, Offer: &kvplane.Offer{ID: id, Peer: dInc, Tokens: 8, Groups: groups}}, nil)
		p.Step(Event{At: now, Kind: EvConsumers, ID: id, Owed: []PeerID{1}}, nil)
		p.Step(Event{At: now, Kind: EvWritten, Peer: 1, Seq: seq, ID: id, Tokens: 8}, nil)
		c.Step(Event{At: now, Kind: EvStatus, Peer: 1, Seq: seq, Msg: &wire.Message{Kind: wire.KindDone, Seq: seq, Status: wire.Status{State: wire.Done, Tokens: 8}}}, nil)
		p.Step(Event{At: now, Kind: EvAck, Peer: 1, Inc: dInc, Msg: &wire.Message{Kind: wire.KindAck, LowWater: seq + 1}}, nil)
		now += 10 * time.Millisecond
		c.Step(Event{At: now, Kind: EvTick}, nil)
		p.Step(Event{At: now, Kind: EvTick}, nil)
	}
	if n := c.timers.Len(); n > 500 {
		t.Errorf("D: %d timers for %d transfers", n, len(c.Incoming))
	}
	if n := p.timers.Len(); n > 3*len(p.Outgoing)+500 {
		t.Errorf("P: %d timers for %d transfers", n, len(p.Outgoing))
	}
}
