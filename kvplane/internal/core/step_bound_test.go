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
func count(out []Effect, do action) int {
	n := 0
	for _, x := range out {
		if x.Do == do {
			n++
		}
	}
	return n
}

// TestEarlyRegistrationsAreBounded: what waits for an offer is bounded by session; one that is refused is told, counted
// and forgotten, and whoever waits already is not hurt.
func TestEarlyRegistrationsAreBounded(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Minute}
	register := func(peer PeerID, i int) []Effect {
		return p.Step(Event{Kind: EvRegister, At: 1, Peer: peer, Inc: far, Seq: uint64(i + 1), ID: numbered(i), Msg: m}, nil)
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
	if len(p.Sessions[1].Regs) != maxEarly || len(p.Given) != maxEarly {
		t.Errorf("%d registrations of %d transfers are remembered; want %d", len(p.Sessions[1].Regs), len(p.Given), maxEarly)
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
	out = p.Step(Event{Kind: EvRegister, At: 3, Peer: 1, Inc: far, Seq: 1 << 20, ID: id, Msg: m}, nil)
	if count(out, DoPost) != 1 {
		t.Errorf("an offered one: %+v; want it to be written", out)
	}
}

// TestCancelsOfUnknownNumbersAreBounded: so is what is remembered of cancels that overtook their registrations.
func TestCancelsOfUnknownNumbersAreBounded(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	full := 0
	for i := range maxRegistrations + 10 {
		out := p.Step(Event{Kind: EvCancel, At: 1, Peer: 1, Inc: far, Seq: uint64(i + 1), ID: numbered(i), Msg: &wire.Message{}}, nil)
		full += count(out, DoDrop)
	}
	if full != 10 || len(p.Sessions[1].Regs) != maxRegistrations {
		t.Errorf("%d were refused, %d are remembered; want 10 and %d", full, len(p.Sessions[1].Regs), maxRegistrations)
	}
}

// TestSpentTransfersMakeRoom: a table full of what has ended does not stop the next transfer; what was forgotten for
// it is never begun, however late its registration comes.
func TestSpentTransfersMakeRoom(t *testing.T) {
	p := NewProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Second}
	step := func(e Event) []Effect {
		e.At, e.Inc = 1, far
		return p.Step(e, nil)
	}
	for i := range maxGiven {
		step(Event{Kind: EvOffer, ID: numbered(i), Offer: &kvplane.Offer{Peer: far}})
		step(Event{Kind: EvAbandon, ID: numbered(i)})
	}
	if len(p.Given) != maxGiven {
		t.Fatalf("%d transfers; want %d", len(p.Given), maxGiven)
	}
	if out := step(Event{Kind: EvRegister, Peer: 1, Seq: 1, ID: numbered(maxGiven), Msg: m}); out[0].Status.State != wire.Waiting {
		t.Errorf("a registration into a full table: %+v; want waiting", out)
	}
	if len(p.Given) != maxGiven || p.Given[numbered(0)] != nil || p.Given[numbered(1)] == nil {
		t.Errorf("%d transfers; want %d, without the oldest", len(p.Given), maxGiven)
	}
	// A table full of what still waits takes no more.
	q := NewProducer(kvplane.Times{}.WithDefaults())
	for i := range maxGiven {
		q.Step(Event{Kind: EvRegister, At: 1, Peer: PeerID(i / maxEarly), Inc: far, Seq: uint64(i + 1), ID: numbered(i), Msg: m}, nil)
	}
	out := q.Step(Event{Kind: EvRegister, At: 1, Peer: 99, Inc: far, Seq: 1, ID: numbered(maxGiven), Msg: m}, nil)
	if count(out, DoDrop) != 1 || out[len(out)-1].Status.Reason != kvplane.Full {
		t.Errorf("a registration into a table of waiting ones: %+v; want not_begun(full)", out)
	}
}

// TestAbandonFindsRoom: that the engine has given a transfer up is remembered in a full table too, and not forgotten for
// what peers say, so that a late offer of it is not held.
func TestAbandonFindsRoom(t *testing.T) {
	s := newStepper("producer")
	s.p.Bounds.Given = 1
	s.play(t, `
		register peer=1 seq=1 tid=1 floor=1
		> send-status peer=1 seq=1 tid=1 waiting
		abandon tid=2
		abandon tid=1
		> send-status peer=1 seq=1 tid=1 not_begun (dead)
		register peer=1 seq=2 tid=3 floor=2
		> send-status peer=1 seq=2 tid=3 waiting
		register peer=1 seq=3 tid=4 floor=2
		> drop full peer=1 seq=3 tid=4
		> send-status peer=1 seq=3 tid=4 not_begun (full)
		offer tid=1
		> report sent tid=1 because=dead 0/0
		offer tid=2
		> report sent tid=2 because=dead 0/0
		# Now they have served, and make room.
		abandon tid=3
		> send-status peer=1 seq=2 tid=3 not_begun (dead)
		register peer=1 seq=4 tid=5 floor=3
		> send-status peer=1 seq=4 tid=5 waiting
		= tid 3 spent, tid 5 early, peer 1 seq 4 waiting
		tick at=300s
		> send-status peer=1 seq=4 tid=5 not_begun (no_offer)
		tick at=400s
		= nothing`)
	if s.p.unborn != 0 {
		t.Errorf("%d are counted though nothing is left", s.p.unborn)
	}
}

// TestLongBeatIsCut: what does not fit into one message follows in the next, at once, and is counted.
func TestLongBeatIsCut(t *testing.T) {
	times := kvplane.Times{}.WithDefaults()
	c := NewConsumer(times)
	total := wire.MaxBeats + 100
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
			case DoBeat:
				if len(x.Beats) > wire.MaxBeats {
					t.Errorf("a beat of %d lines; want at most %d", len(x.Beats), wire.MaxBeats)
				}
				for _, l := range x.Beats {
					named[l.Seq]++
				}
				c.Step(Event{Kind: EvBeatAck, At: at, Peer: 1, Msg: &wire.Message{}}, nil)
			}
		}
	}
	beat(times.Beat + 1)
	if len(named) != wire.MaxBeats || cut != 1 {
		t.Errorf("the first beat names %d, %d cuts are counted; want %d and 1", len(named), cut, wire.MaxBeats)
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
