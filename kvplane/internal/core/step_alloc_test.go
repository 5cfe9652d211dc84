package core

import (
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// steady is a side of the plane with many transfers under way, and what its steps need without making anything new.
type steady struct {
	p    *Producer
	c    *Consumer
	out  []Effect
	at   time.Duration
	next int          // the transfer that the next step is about
	msg  wire.Message // for steps that say something new each time
}

const steadyTransfers = 600

func (s *steady) id() kvplane.TransferID { return steadyID(s.next) }

func steadyID(i int) kvplane.TransferID { return kvplane.TransferID{1: byte(i), 2: byte(i >> 8)} }

func (s *steady) step(e Event) {
	s.at += time.Microsecond
	e.At = s.at
	if s.p != nil {
		s.out = s.p.Step(e, s.out[:0])
	} else {
		s.out = s.c.Step(e, s.out[:0])
	}
}

var far = metadata.Incarnation{Engine: "far", Generation: 1}

// consuming returns a D that has registered all transfers with two producers; peer 1 is the first.
func consuming() *steady {
	s := &steady{c: NewConsumer(kvplane.Times{}.WithDefaults()), out: make([]Effect, 0, 8192)}
	links := []Link{{Peer: 1, Writes: true}, {Peer: 2, Writes: true}}
	for i := range steadyTransfers {
		x := &kvplane.Expectation{ID: steadyID(i), Peer: far, Need: [2]int{0, 8}, Wait: time.Hour}
		s.step(Event{Kind: EvExpect, ID: x.ID, Inc: far, Expect: x})
		s.step(Event{Kind: EvProducers, ID: x.ID, Links: links})
	}
	return s
}

// producing returns a P for which peer 1 has registered for all transfers, and which holds and writes them.
func producing() *steady {
	s := &steady{p: NewProducer(kvplane.Times{}.WithDefaults()), out: make([]Effect, 0, 8192)}
	m := &wire.Message{Wait: time.Hour}
	for i := range steadyTransfers {
		s.step(Event{Kind: EvWriteRequest, Peer: 1, Inc: far, Seq: uint64(i + 1), ID: steadyID(i), Msg: m})
		s.step(Event{Kind: EvOffer, ID: steadyID(i), Inc: far, Offer: &kvplane.Offer{ID: steadyID(i), Peer: far}})
		s.step(Event{Kind: EvConsumers, ID: steadyID(i), Owed: []PeerID{1, 2}})
	}
	return s
}

// TestNoAllocationPerEvent: what happens to transfers that are known makes nothing new, however often.
func TestNoAllocationPerEvent(t *testing.T) {
	lines, answers := &wire.Message{Lines: make([]wire.HeartbeatLine, steadyTransfers)}, make([]wire.HeartbeatLine, steadyTransfers)
	for i := range answers {
		lines.Lines[i] = wire.HeartbeatLine{Seq: uint64(i + 1), ID: steadyID(i)}
		answers[i] = wire.HeartbeatLine{Seq: uint64(i + 1), Status: wire.Status{State: []wire.State{wire.Writing, wire.Done}[i%2]}}
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
			s.step(Event{Kind: EvStatus, Peer: 1, Seq: uint64(s.next + 1), Msg: waiting})
		}},
		{"DONE counted", consuming, func(s *steady) {
			s.step(Event{Kind: EvStatus, Peer: 1, Seq: uint64(s.next + 1), Msg: done})
		}},
		{"last DONE", consuming, func(s *steady) {
			s.step(Event{Kind: EvStatus, Peer: 1, Seq: uint64(s.next + 1), Msg: done})
			s.step(Event{Kind: EvStatus, Peer: 2, Seq: uint64(s.next + 1), Msg: done})
			s.step(Event{Kind: EvStatus, Peer: 2, Seq: uint64(s.next + 1), Msg: done}) // late
		}},
		{"STATUS not_begun", consuming, func(s *steady) {
			s.step(Event{Kind: EvStatus, Peer: 1, Seq: uint64(s.next + 1), Msg: failed})
		}},
		{"cancel", consuming, func(s *steady) { s.step(Event{Kind: EvAbandon, ID: s.id()}) }},
		{"BEAT sent", consuming, func(s *steady) {
			s.at += time.Second
			s.step(Event{Kind: EvTick})
			s.step(Event{Kind: EvHeartbeatAck, Peer: 1, Msg: waiting})
			s.step(Event{Kind: EvHeartbeatAck, Peer: 2, Msg: waiting})
		}},
		{"BEAT_ACK", consuming, func(s *steady) {
			s.msg.Lines = answers[s.next : s.next+1]
			s.step(Event{Kind: EvHeartbeatAck, Peer: 1, Msg: &s.msg})
		}},
		{"REGISTER again", producing, func(s *steady) {
			s.step(Event{Kind: EvWriteRequest, Peer: 1, Inc: far, Seq: uint64(s.next + 1), ID: s.id(), Msg: waiting})
		}},
		{"CANCEL", producing, func(s *steady) {
			s.step(Event{Kind: EvCancel, Peer: 1, Inc: far, Seq: uint64(s.next + 1), ID: s.id(), Msg: waiting})
		}},
		{"BEAT", producing, func(s *steady) {
			s.step(Event{Kind: EvHeartbeat, Peer: 1, Inc: far, Msg: lines})
		}},
		{"write ended", producing, func(s *steady) {
			s.step(Event{Kind: EvWritten, Peer: 1, Seq: uint64(s.next + 1), ID: s.id(), Tokens: 8})
		}},
		{"write broken", producing, func(s *steady) {
			s.step(Event{Kind: EvBroken, Peer: 1, Seq: uint64(s.next + 1), ID: s.id()})
		}},
		{"FLOOR", producing, func(s *steady) {
			s.step(Event{Kind: EvWritten, Peer: 1, Seq: uint64(s.next + 1), ID: s.id(), Tokens: 8})
			s.msg.LowWater = uint64(s.next + 2)
			s.step(Event{Kind: EvAck, Peer: 1, Inc: far, Msg: &s.msg})
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
		links := []Link{{Peer: 1, Writes: true}}
		done := &wire.Message{Status: wire.Status{State: wire.Done, Tokens: 8}}
		x := &kvplane.Expectation{Peer: far, Need: [2]int{0, 8}, Wait: time.Hour}
		run := func() {
			s.step(Event{Kind: EvExpect, ID: s.id(), Inc: far, Expect: x})
			s.step(Event{Kind: EvProducers, ID: s.id(), Links: links})
			s.step(Event{Kind: EvStatus, Peer: 1, Seq: uint64(s.next + 1), Msg: done})
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
		owed := []PeerID{1}
		run := func() {
			s.step(Event{Kind: EvWriteRequest, Peer: 1, Inc: far, Seq: uint64(s.next + 1), ID: s.id(), Msg: m})
			s.step(Event{Kind: EvOffer, ID: s.id(), Inc: far, Offer: o})
			s.step(Event{Kind: EvConsumers, ID: s.id(), Owed: owed})
			s.step(Event{Kind: EvWritten, Peer: 1, Seq: uint64(s.next + 1), ID: s.id(), Tokens: 8})
			s.msg.LowWater = uint64(s.next + 2)
			s.step(Event{Kind: EvAck, Peer: 1, Inc: far, Msg: &s.msg})
			s.next++
			s.at += time.Second // what was spent is forgotten, as in a long run
			s.step(Event{Kind: EvTick})
		}
		for range 600 {
			run()
		}
		if got := testing.AllocsPerRun(500, run); got > 3 { // the transfer, its write request, the list of these
			t.Errorf("%v allocations; want at most 3", got)
		}
	})
}
