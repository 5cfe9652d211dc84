package core

import (
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// TestCancelledTransfersMakeRoom: transfers that one consumer has asked for and given up, before they were offered, do not keep others from being
// served.
func TestCancelledTransfersMakeRoom(t *testing.T) {
	now := time.Duration(1)
	d1, d2 := metadata.Incarnation{Engine: "d1", Generation: 1}, metadata.Incarnation{Engine: "d2", Generation: 1}
	p := NewProducer(kvplane.Times{}.WithDefaults())
	p.Bounds.Outgoing = 1000
	for i := range p.Bounds.Outgoing {
		id, seq := kvplane.NewTransferID(), uint64(i+1)
		p.Step(Event{At: now, Kind: EvWriteRequest, Peer: 1, Inc: d1, Seq: seq, ID: id, Msg: &wire.Message{Kind: wire.KindWriteRequest, LowWater: seq, Seq: seq, ID: id, Wait: kvplane.MaxWait}}, nil)
		p.Step(Event{At: now, Kind: EvCancel, Peer: 1, Inc: d1, Seq: seq, ID: id, Msg: &wire.Message{Kind: wire.KindCancel, LowWater: seq, Seq: seq, ID: id}}, nil)
		p.Step(Event{At: now, Kind: EvAck, Peer: 1, Inc: d1, Msg: &wire.Message{Kind: wire.KindAck, LowWater: seq + 1}}, nil)
		now += time.Millisecond
		p.Step(Event{At: now, Kind: EvTick}, nil)
	}
	id := kvplane.NewTransferID()
	for _, x := range p.Step(Event{At: now, Kind: EvWriteRequest, Peer: 2, Inc: d2, Seq: 1, ID: id, Msg: &wire.Message{Kind: wire.KindWriteRequest, LowWater: 1, Seq: 1, ID: id, Wait: time.Minute}}, nil) {
		if x.Do == DoStatus && x.Status.State == wire.NotBegun {
			t.Errorf("the first write request of another consumer: %s, %s", x.Status.State, x.Status.Reason)
		}
	}
	now += 61 * time.Second // lease and wait
	p.Step(Event{At: now, Kind: EvTick}, nil)
	if n := len(p.Outgoing); n > 1 {
		t.Errorf("%d transfers are remembered a minute later; want that of the other consumer", n)
	}
}
