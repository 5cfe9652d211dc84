package agent

import (
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// steady is a side of the plane with many transfers under way, and what its steps need without making anything new.
type steady struct {
	p    *producer
	c    *consumer
	out  []effect
	at   time.Duration
	next int          // the transfer that the next step is about
	msg  wire.Message // for steps that say something new each time
}

const steadyTransfers = 600

func (s *steady) id() kvplane.TransferID { return steadyID(s.next) }

func steadyID(i int) kvplane.TransferID { return kvplane.TransferID{1: byte(i), 2: byte(i >> 8)} }

func (s *steady) step(e event) {
	s.at += time.Microsecond
	e.at = s.at
	if s.p != nil {
		s.out = s.p.Step(e, s.out[:0])
	} else {
		s.out = s.c.Step(e, s.out[:0])
	}
}

var far = metadata.Incarnation{Engine: "far", Generation: 1}

// consuming returns a D that has registered all transfers with two producers; peer 1 is the first.
func consuming() *steady {
	s := &steady{c: newConsumer(kvplane.Times{}.WithDefaults()), out: make([]effect, 0, 8192)}
	links := []linkTo{{peer: 1, writes: true}, {peer: 2, writes: true}}
	for i := range steadyTransfers {
		x := &kvplane.Expectation{ID: steadyID(i), Peer: far, Need: [2]int{0, 8}, Wait: time.Hour}
		s.step(event{kind: evExpect, id: x.ID, inc: far, expect: x})
		s.step(event{kind: evProducers, id: x.ID, links: links})
	}
	return s
}

// producing returns a P for which peer 1 has registered for all transfers, and which holds and writes them.
func producing() *steady {
	s := &steady{p: newProducer(kvplane.Times{}.WithDefaults()), out: make([]effect, 0, 8192)}
	m := &wire.Message{Wait: time.Hour}
	for i := range steadyTransfers {
		s.step(event{kind: evRegister, peer: 1, inc: far, seq: uint64(i + 1), id: steadyID(i), msg: m})
		s.step(event{kind: evOffer, id: steadyID(i), inc: far, offer: &kvplane.Offer{ID: steadyID(i), Peer: far}})
		s.step(event{kind: evConsumers, id: steadyID(i), owed: []peerID{1, 2}})
	}
	return s
}

// TestNoAllocationPerEvent: what happens to transfers that are known makes nothing new, however often.
func TestNoAllocationPerEvent(t *testing.T) {
	lines, answers := &wire.Message{Beats: make([]wire.Beat, steadyTransfers)}, make([]wire.Beat, steadyTransfers)
	for i := range answers {
		lines.Beats[i] = wire.Beat{Seq: uint64(i + 1), ID: steadyID(i)}
		answers[i] = wire.Beat{Seq: uint64(i + 1), Status: wire.Status{State: []wire.State{wire.Writing, wire.Done}[i%2]}}
	}
	waiting := &wire.Message{Status: wire.Status{State: wire.Waiting}}
	done := &wire.Message{Status: wire.Status{State: wire.Done, Tokens: 8}}
	failed := &wire.Message{Status: wire.Status{State: wire.NotBegun, Reason: kvplane.Short, Detail: "tokens: 1 on P, 2 on D"}}
	for _, tc := range []struct {
		name string
		side func() *steady
		step func(*steady)
	}{
		{"STATUS", consuming, func(s *steady) {
			s.step(event{kind: evStatus, peer: 1, seq: uint64(s.next + 1), msg: waiting})
		}},
		{"DONE counted", consuming, func(s *steady) {
			s.step(event{kind: evStatus, peer: 1, seq: uint64(s.next + 1), msg: done})
		}},
		{"last DONE", consuming, func(s *steady) {
			s.step(event{kind: evStatus, peer: 1, seq: uint64(s.next + 1), msg: done})
			s.step(event{kind: evStatus, peer: 2, seq: uint64(s.next + 1), msg: done})
			s.step(event{kind: evStatus, peer: 2, seq: uint64(s.next + 1), msg: done}) // late
		}},
		{"STATUS not_begun", consuming, func(s *steady) {
			s.step(event{kind: evStatus, peer: 1, seq: uint64(s.next + 1), msg: failed})
		}},
		{"cancel", consuming, func(s *steady) { s.step(event{kind: evAbandon, id: s.id()}) }},
		{"BEAT sent", consuming, func(s *steady) {
			s.at += time.Second
			s.step(event{kind: evTick})
			s.step(event{kind: evBeatAck, peer: 1, msg: waiting})
			s.step(event{kind: evBeatAck, peer: 2, msg: waiting})
		}},
		{"BEAT_ACK", consuming, func(s *steady) {
			s.msg.Beats = answers[s.next : s.next+1]
			s.step(event{kind: evBeatAck, peer: 1, msg: &s.msg})
		}},
		{"REGISTER again", producing, func(s *steady) {
			s.step(event{kind: evRegister, peer: 1, inc: far, seq: uint64(s.next + 1), id: s.id(), msg: waiting})
		}},
		{"CANCEL", producing, func(s *steady) {
			s.step(event{kind: evCancel, peer: 1, inc: far, seq: uint64(s.next + 1), id: s.id(), msg: waiting})
		}},
		{"BEAT", producing, func(s *steady) {
			s.step(event{kind: evBeat, peer: 1, inc: far, msg: lines})
		}},
		{"write ended", producing, func(s *steady) {
			s.step(event{kind: evWritten, peer: 1, seq: uint64(s.next + 1), id: s.id(), tokens: 8})
		}},
		{"write broken", producing, func(s *steady) {
			s.step(event{kind: evBroken, peer: 1, seq: uint64(s.next + 1), id: s.id()})
		}},
		{"FLOOR", producing, func(s *steady) {
			s.step(event{kind: evWritten, peer: 1, seq: uint64(s.next + 1), id: s.id(), tokens: 8})
			s.msg.Floor = uint64(s.next + 2)
			s.step(event{kind: evFloor, peer: 1, inc: far, msg: &s.msg})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.side()
			run := func() {
				tc.step(s)
				s.next++
			}
			for range 400 { // let tables and lists find their size
				run()
			}
			if got := testing.AllocsPerRun(150, run); got > 0 {
				t.Errorf("%v allocations per step; want none", got)
			}
		})
	}
}

// TestAllocationsOfOneTransfer: a new transfer may make what remembers it, and nothing beyond.
func TestAllocationsOfOneTransfer(t *testing.T) {
	t.Run("D", func(t *testing.T) {
		s := consuming()
		s.next = steadyTransfers
		links := []linkTo{{peer: 1, writes: true}}
		done := &wire.Message{Status: wire.Status{State: wire.Done, Tokens: 8}}
		x := &kvplane.Expectation{Peer: far, Need: [2]int{0, 8}, Wait: time.Hour}
		run := func() {
			s.step(event{kind: evExpect, id: s.id(), inc: far, expect: x})
			s.step(event{kind: evProducers, id: s.id(), links: links})
			s.step(event{kind: evStatus, peer: 1, seq: uint64(s.next + 1), msg: done})
			s.next++
		}
		for range 600 {
			run()
		}
		if got := testing.AllocsPerRun(500, run); got > 3 { // the receipt, its one link, the list of these
			t.Errorf("%v allocations; want at most 3", got)
		}
	})
	t.Run("P", func(t *testing.T) {
		s := producing()
		s.next = steadyTransfers
		m := &wire.Message{Wait: time.Second}
		o := &kvplane.Offer{Peer: far}
		owed := []peerID{1}
		run := func() {
			s.step(event{kind: evRegister, peer: 1, inc: far, seq: uint64(s.next + 1), id: s.id(), msg: m})
			s.step(event{kind: evOffer, id: s.id(), inc: far, offer: o})
			s.step(event{kind: evConsumers, id: s.id(), owed: owed})
			s.step(event{kind: evWritten, peer: 1, seq: uint64(s.next + 1), id: s.id(), tokens: 8})
			s.msg.Floor = uint64(s.next + 2)
			s.step(event{kind: evFloor, peer: 1, inc: far, msg: &s.msg})
			s.next++
			s.at += time.Second // what was spent is forgotten, as in a long run
			s.step(event{kind: evTick})
		}
		for range 600 {
			run()
		}
		if got := testing.AllocsPerRun(500, run); got > 3 { // the transfer, its registration, the list of these
			t.Errorf("%v allocations; want at most 3", got)
		}
	})
}
