package core

import (
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
)

func numbered(i int) kvplane.TransferID {
	return kvplane.TransferID{0: 1, 1: byte(i), 2: byte(i >> 8), 3: byte(i >> 16)}
}

// count says how many of the effects do something.
func count(out []Effect, do Action) int {
	n := 0
	for _, x := range out {
		if x.Do == do {
			n++
		}
	}
	return n
}

// TestEarlyWriteRequestsAreBounded: what waits for an offer is bounded by session; one that is refused is told, counted
// and forgotten, and whoever waits already is not hurt.
func TestEarlyWriteRequestsAreBounded(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Minute}
	register := func(peer PeerID, i int) []Effect {
		return p.Step(Event{Kind: EvWriteRequest, At: 1, Peer: peer, Inc: far, Seq: uint64(i + 1), ID: numbered(i), Msg: m}, nil)
	}
	for i := range maxEarly {
		if out := register(1, i); len(out) != 1 || out[0].Status.State != wire.Waiting {
			t.Fatalf("registration %d: %+v", i, out)
		}
	}
	out := register(1, maxEarly)
	if len(out) != 2 || out[0].Drop != dropFull || out[1].Status.Reason != kvplane.Full {
		t.Errorf("one more than fit: %+v; want a count and not_begun(full)", out)
	}
	if len(p.Sessions[1].Requests) != maxEarly || len(p.Outgoing) != maxEarly {
		t.Errorf("%d write requests of %d transfers are remembered; want %d", len(p.Sessions[1].Requests), len(p.Outgoing), maxEarly)
	}
	if out := register(2, maxEarly); len(out) != 1 || out[0].Status.State != wire.Waiting {
		t.Errorf("another session: %+v; want waiting", out)
	}
	// One ends: there is room for one.
	p.Step(Event{Kind: EvAbandon, At: 2, ID: numbered(0)}, nil)
	if out := register(1, maxEarly+1); len(out) != 1 || out[0].Status.State != wire.Waiting {
		t.Errorf("after one has ended: %+v; want waiting", out)
	}
	// What is offered already does not wait.
	id := numbered(1 << 20)
	p.Step(Event{Kind: EvOffer, At: 3, ID: id, Inc: far, Offer: &kvplane.Offer{Peer: far}}, nil)
	p.Step(Event{Kind: EvConsumers, At: 3, ID: id, Owed: []PeerID{1}}, nil)
	out = p.Step(Event{Kind: EvWriteRequest, At: 3, Peer: 1, Inc: far, Seq: 1 << 20, ID: id, Msg: m}, nil)
	if count(out, DoPost) != 1 {
		t.Errorf("an offered one: %+v; want it to be written", out)
	}
}

// TestCancelsOfUnknownNumbersAreBounded: so is what is remembered of cancels that overtook their write requests.
func TestCancelsOfUnknownNumbersAreBounded(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	full := 0
	for i := range maxRequests + 10 {
		out := p.Step(Event{Kind: EvCancel, At: 1, Peer: 1, Inc: far, Seq: uint64(i + 1), ID: numbered(i), Msg: &wire.Message{}}, nil)
		full += count(out, DoDrop)
	}
	if full != 10 || len(p.Sessions[1].Requests) != maxRequests {
		t.Errorf("%d were refused, %d are remembered; want 10 and %d", full, len(p.Sessions[1].Requests), maxRequests)
	}
}

// TestSpentTransfersMakeRoom: a table full of what has ended does not stop the next transfer; what was forgotten for
// it is never begun, however late its write request comes.
func TestSpentTransfersMakeRoom(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Second}
	step := func(e Event) []Effect {
		e.At, e.Inc = 1, far
		return p.Step(e, nil)
	}
	for i := range maxOutgoing {
		step(Event{Kind: EvOffer, ID: numbered(i), Offer: &kvplane.Offer{Peer: far}})
		step(Event{Kind: EvAbandon, ID: numbered(i)})
	}
	if len(p.Outgoing) != maxOutgoing {
		t.Fatalf("%d transfers; want %d", len(p.Outgoing), maxOutgoing)
	}
	if out := step(Event{Kind: EvWriteRequest, Peer: 1, Seq: 1, ID: numbered(maxOutgoing), Msg: m}); out[0].Status.State != wire.Waiting {
		t.Errorf("a registration into a full table: %+v; want waiting", out)
	}
	if len(p.Outgoing) != maxOutgoing || p.Outgoing[numbered(0)] != nil || p.Outgoing[numbered(1)] == nil {
		t.Errorf("%d transfers; want %d, without the oldest", len(p.Outgoing), maxOutgoing)
	}
	// A table full of what still waits takes no more.
	q := NewProducer(kvplane.Times{}.WithDefaults())
	for i := range maxOutgoing {
		q.Step(Event{Kind: EvWriteRequest, At: 1, Peer: PeerID(i / maxEarly), Inc: far, Seq: uint64(i + 1), ID: numbered(i), Msg: m}, nil)
	}
	out := q.Step(Event{Kind: EvWriteRequest, At: 1, Peer: 99, Inc: far, Seq: 1, ID: numbered(maxOutgoing), Msg: m}, nil)
	if count(out, DoDrop) != 1 || out[len(out)-1].Status.Reason != kvplane.Full {
		t.Errorf("a registration into a table of waiting ones: %+v; want not_begun(full)", out)
	}
}

// TestAbandonFindsRoom: that the engine has given a transfer up is remembered in a full table too, and not forgotten for
// what peers say, so that a late offer of it is not held.
func TestAbandonFindsRoom(t *testing.T) {
	s := newStepper("producer")
	s.p.Bounds.Outgoing = 1
	s.play(t, `
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 waiting
		abandon tid=2
		abandon tid=1
		> send-status peer=1 seq=1 tid=1 not_begun (aborted)
		write-request peer=1 seq=2 tid=3 low=2
		> send-status peer=1 seq=2 tid=3 waiting
		write-request peer=1 seq=3 tid=4 low=2
		> drop full peer=1 seq=3 tid=4
		> send-status peer=1 seq=3 tid=4 not_begun (full)
		offer tid=1
		> report sent tid=1 because=aborted 0/0
		offer tid=2
		> report sent tid=2 because=aborted 0/0
		# Now they have served, and make room.
		abandon tid=3
		> send-status peer=1 seq=2 tid=3 not_begun (aborted)
		write-request peer=1 seq=4 tid=5 low=3
		> send-status peer=1 seq=4 tid=5 waiting
		= tid 3 tombstone, tid 5 early, peer 1 seq 4 waiting
		tick at=300s
		> send-status peer=1 seq=4 tid=5 not_begun (no_offer)
		tick at=400s
		= nothing`)
	if s.p.abandonedBeforeOffer != 0 {
		t.Errorf("%d are counted though nothing is left", s.p.abandonedBeforeOffer)
	}
}

// TestLongBeatIsCut: what does not fit into one message follows in the next, at once, and is counted.
func TestLongBeatIsCut(t *testing.T) {
	times := kvplane.Times{}.WithDefaults()
	c := NewConsumer(times)
	total := wire.MaxLines + 100
	for i := range total {
		id := numbered(i)
		x := &kvplane.Expectation{ID: id, Peer: far, Need: [2]int{0, 8}, Wait: time.Hour}
		c.Step(Event{Kind: EvExpect, At: 1, ID: id, Inc: far, Expect: x}, nil)
		c.Step(Event{Kind: EvProducers, At: 1, ID: id, Links: []Link{{Peer: 1, Writes: true}}}, nil)
		c.Step(Event{Kind: EvStatus, At: 1, Peer: 1, Seq: uint64(i + 1), Msg: &wire.Message{Status: wire.Status{State: wire.Waiting}}}, nil)
	}
	named := map[uint64]int{}
	cut := 0
	beat := func(at time.Duration) {
		for _, x := range c.Step(Event{Kind: EvTick, At: at}, nil) {
			switch x.Do {
			case DoDrop:
				cut++
			case DoHeartbeat:
				if len(x.Lines) > wire.MaxLines {
					t.Errorf("a beat of %d lines; want at most %d", len(x.Lines), wire.MaxLines)
				}
				for _, l := range x.Lines {
					named[l.Seq]++
				}
				c.Step(Event{Kind: EvHeartbeatAck, At: at, Peer: 1, Msg: &wire.Message{}}, nil)
			}
		}
	}
	beat(times.Beat + 1)
	if len(named) != wire.MaxLines || cut != 1 {
		t.Errorf("the first beat names %d, %d cuts are counted; want %d and 1", len(named), cut, wire.MaxLines)
	}
	beat(times.Beat + times.Resend + 2)
	if len(named) != total || cut != 1 {
		t.Errorf("two beats name %d, %d cuts are counted; want %d and 1", len(named), cut, total)
	}
	beat(2*times.Beat + times.Resend + 3)
	if named[1] != 2 {
		t.Errorf("number 1 is named %d times by three beats; want 2", named[1])
	}
}
