package agent

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
func count(out []effect, do action) int {
	n := 0
	for _, x := range out {
		if x.do == do {
			n++
		}
	}
	return n
}

// TestEarlyRegistrationsAreBounded: what waits for an offer is bounded by session; one that is refused is told, counted
// and forgotten, and whoever waits already is not hurt.
func TestEarlyRegistrationsAreBounded(t *testing.T) {
	p := newProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Minute}
	register := func(peer peerID, i int) []effect {
		return p.Step(event{kind: evRegister, at: 1, peer: peer, inc: far, seq: uint64(i + 1), id: numbered(i), msg: m}, nil)
	}
	for i := range maxEarly {
		if out := register(1, i); len(out) != 1 || out[0].status.State != wire.Waiting {
			t.Fatalf("registration %d: %+v", i, out)
		}
	}
	out := register(1, maxEarly)
	if len(out) != 2 || out[0].drop != dropFull || out[1].status.Reason != kvplane.Full {
		t.Errorf("one more than fit: %+v; want a count and not_begun(full)", out)
	}
	if len(p.sessions[1].regs) != maxEarly || len(p.given) != maxEarly {
		t.Errorf("%d registrations of %d transfers are remembered; want %d", len(p.sessions[1].regs), len(p.given), maxEarly)
	}
	if out := register(2, maxEarly); len(out) != 1 || out[0].status.State != wire.Waiting {
		t.Errorf("another session: %+v; want waiting", out)
	}
	// One ends: there is room for one.
	p.Step(event{kind: evAbandon, at: 2, id: numbered(0)}, nil)
	if out := register(1, maxEarly+1); len(out) != 1 || out[0].status.State != wire.Waiting {
		t.Errorf("after one has ended: %+v; want waiting", out)
	}
	// What is offered already does not wait.
	id := numbered(1 << 20)
	p.Step(event{kind: evOffer, at: 3, id: id, inc: far, offer: &kvplane.Offer{Peer: far}}, nil)
	p.Step(event{kind: evConsumers, at: 3, id: id, owed: []peerID{1}}, nil)
	out = p.Step(event{kind: evRegister, at: 3, peer: 1, inc: far, seq: 1 << 20, id: id, msg: m}, nil)
	if count(out, doPost) != 1 {
		t.Errorf("an offered one: %+v; want it to be written", out)
	}
}

// TestCancelsOfUnknownNumbersAreBounded: so is what is remembered of cancels that overtook their registrations.
func TestCancelsOfUnknownNumbersAreBounded(t *testing.T) {
	p := newProducer(kvplane.Times{}.WithDefaults())
	full := 0
	for i := range maxRegistrations + 10 {
		out := p.Step(event{kind: evCancel, at: 1, peer: 1, inc: far, seq: uint64(i + 1), id: numbered(i), msg: &wire.Message{}}, nil)
		full += count(out, doDrop)
	}
	if full != 10 || len(p.sessions[1].regs) != maxRegistrations {
		t.Errorf("%d were refused, %d are remembered; want 10 and %d", full, len(p.sessions[1].regs), maxRegistrations)
	}
}

// TestSpentTransfersMakeRoom: a table full of what has ended does not stop the next transfer; what was forgotten for
// it is never begun, however late its registration comes.
func TestSpentTransfersMakeRoom(t *testing.T) {
	p := newProducer(kvplane.Times{}.WithDefaults())
	m := &wire.Message{Wait: time.Second}
	step := func(e event) []effect {
		e.at, e.inc = 1, far
		return p.Step(e, nil)
	}
	for i := range maxGiven {
		step(event{kind: evOffer, id: numbered(i), offer: &kvplane.Offer{Peer: far}})
		step(event{kind: evAbandon, id: numbered(i)})
	}
	if len(p.given) != maxGiven {
		t.Fatalf("%d transfers; want %d", len(p.given), maxGiven)
	}
	if out := step(event{kind: evRegister, peer: 1, seq: 1, id: numbered(maxGiven), msg: m}); out[0].status.State != wire.Waiting {
		t.Errorf("a registration into a full table: %+v; want waiting", out)
	}
	if len(p.given) != maxGiven || p.given[numbered(0)] != nil || p.given[numbered(1)] == nil {
		t.Errorf("%d transfers; want %d, without the oldest", len(p.given), maxGiven)
	}
	// A table full of what still waits takes no more.
	q := newProducer(kvplane.Times{}.WithDefaults())
	for i := range maxGiven {
		q.Step(event{kind: evRegister, at: 1, peer: peerID(i / maxEarly), inc: far, seq: uint64(i + 1), id: numbered(i), msg: m}, nil)
	}
	out := q.Step(event{kind: evRegister, at: 1, peer: 99, inc: far, seq: 1, id: numbered(maxGiven), msg: m}, nil)
	if count(out, doDrop) != 1 || out[len(out)-1].status.Reason != kvplane.Full {
		t.Errorf("a registration into a table of waiting ones: %+v; want not_begun(full)", out)
	}
}

// TestAbandonFindsRoom: that the engine has given a transfer up is remembered in a full table too, and not forgotten for
// what peers say, so that a late offer of it is not held.
func TestAbandonFindsRoom(t *testing.T) {
	s := newStepper("producer")
	s.p.bounds.given = 1
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
	c := newConsumer(times)
	total := wire.MaxBeats + 100
	for i := range total {
		id := numbered(i)
		x := &kvplane.Expectation{ID: id, Peer: far, Need: [2]int{0, 8}, Wait: time.Hour}
		c.Step(event{kind: evExpect, at: 1, id: id, inc: far, expect: x}, nil)
		c.Step(event{kind: evProducers, at: 1, id: id, links: []linkTo{{peer: 1, writes: true}}}, nil)
		c.Step(event{kind: evStatus, at: 1, peer: 1, seq: uint64(i + 1), msg: &wire.Message{Status: wire.Status{State: wire.Waiting}}}, nil)
	}
	named := map[uint64]int{}
	cut := 0
	beat := func(at time.Duration) {
		for _, x := range c.Step(event{kind: evTick, at: at}, nil) {
			switch x.do {
			case doDrop:
				cut++
			case doBeat:
				if len(x.beats) > wire.MaxBeats {
					t.Errorf("a beat of %d lines; want at most %d", len(x.beats), wire.MaxBeats)
				}
				for _, l := range x.beats {
					named[l.Seq]++
				}
				c.Step(event{kind: evBeatAck, at: at, peer: 1, msg: &wire.Message{}}, nil)
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
