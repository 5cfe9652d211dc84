package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// crowd is an owner that is not run, whose peers come and go under names of their own.
type crowd struct {
	t     *testing.T
	w     *owner
	net   *fakeNet
	clock time.Duration
	gone  bool // the directory knows only the engine that was made last
	last  metadata.Incarnation
	peer  metadata.Record
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	c := &crowd{t: t, net: newFakeNet(), clock: 1, peer: side(1).WithDefaults().Records("peer")[0]}
	self := side(1).WithDefaults().Records("self")[0]
	key, agree, err := transport.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	self.Agent, self.Key, self.Transport, self.Generation = "self@1/0/0/0", key, "fake", 1
	if c.peer.Key, _, err = transport.NewKey(); err != nil {
		t.Fatal(err)
	}
	tr := c.net.transport()
	if _, _, err := tr.Open(self.Agent, nil); err != nil {
		t.Fatal(err)
	}
	h := host{now: func() time.Duration { return c.clock }, agree: agree, exited: func(metadata.Process) bool { return false }}
	c.w = newOwner(t.Context(), Config{Transport: tr, Times: kvplane.Times{}.WithDefaults(), Log: slog.New(slog.DiscardHandler), Report: func(kvplane.Report) {}}, self, h)
	c.w.host.ask = func(inc metadata.Incarnation, then func([]metadata.Record, error)) {
		c.w.enqueue(func() {
			if c.gone && inc != c.last {
				then(nil, metadata.ErrNotFound)
				return
			}
			r := c.peer
			r.Incarnation, r.Agent, r.Transport = inc, inc.ID()+"/0/0/0", "fake"
			then([]metadata.Record{r}, nil)
		})
	}
	return c
}

// use has the owner offer something to an engine and takes it back.
func (c *crowd) use(inc metadata.Incarnation) {
	c.last = inc
	c.net.ends[inc.ID()+"/0/0/0"] = c.net.transport()
	id := kvplane.NewTransferID()
	c.w.offer(&kvplane.Offer{ID: id, Peer: inc, Tokens: 12, Groups: fromP})
	c.w.pass()
	if c.w.engines[inc] == nil || c.w.engines[inc].peers == nil {
		c.t.Fatalf("%s is not known after it was offered something; %d peers are", inc.ID(), len(c.w.peers))
	}
	c.w.abandon(id, "test")
	c.w.pass()
}

// TestEnginesThatLeftAreForgotten: the directory does not know engines any more that were not used for long; and where
// the table is full of live ones, the longest unused make room.
func TestEnginesThatLeftAreForgotten(t *testing.T) {
	t.Run("left", func(t *testing.T) {
		c := newCrowd(t)
		c.gone = true
		for i := range 600 {
			c.use(metadata.Incarnation{Engine: fmt.Sprint("e", i), Generation: 1})
			c.clock += time.Minute
		}
		if n := len(c.w.engines); n > 130 {
			t.Errorf("%d engines are known of 60 that came in the last hour", n)
		}
		if n := len(c.w.peers) + len(c.w.agents) + len(c.w.producer.Sessions); n > 3*130 {
			t.Errorf("%d peers, agents and sessions are left", n)
		}
	})
	t.Run("full", func(t *testing.T) {
		c := newCrowd(t)
		held := metadata.Incarnation{Engine: "held", Generation: 1}
		c.w.room = 200
		c.w.cfg.Times.Lease = 1 * time.Minute
		c.w.producer.Times.Lease = time.Hour * 1000
		c.w.offer(&kvplane.Offer{ID: kvplane.NewTransferID(), Peer: held, Tokens: 12, Groups: fromP})
		c.w.pass()
		for i := range 300 {
			c.use(metadata.Incarnation{Engine: fmt.Sprint("e", i), Generation: 1})
			c.clock += time.Second
		}
		if n := len(c.w.peers); n != 200 {
			t.Errorf("%d peers are known; want the table full", n)
		}
		if c.w.engines[held] == nil {
			t.Error("an engine was forgotten to which blocks are offered")
		}
		if c.w.engines[metadata.Incarnation{Engine: "e0", Generation: 1}] != nil {
			t.Error("the longest unused engine is still there")
		}
	})
	t.Run("names", func(t *testing.T) {
		c := newCrowd(t)
		for i := range maxNames + 1 {
			c.w.raise(fmt.Sprint("x", i), 2)
		}
		c.use(metadata.Incarnation{Engine: "now", Generation: 1})
		if _, err := c.w.resolve(metadata.Incarnation{Engine: "x0", Generation: 1}); !errors.Is(err, ErrSuperseded) {
			t.Errorf("an old generation: %v; want ErrSuperseded while its record may be served", err)
		}
		c.clock += forgetAfter
		c.use(metadata.Incarnation{Engine: "now", Generation: 2})
		if n := len(c.w.newest); n > 2 {
			t.Errorf("%d names are remembered", n)
		}
	})
}

// forget has every rank forget an engine with which nothing is under way.
func (r *rig) forget(whom metadata.Incarnation) {
	r.t.Helper()
	for _, a := range r.agents {
		done := make(chan bool)
		a.owner.engineCall(func() {
			idle := a.owner.isIdle(whom, a.owner.engines[whom])
			if idle {
				a.owner.forget(whom)
			}
			done <- idle
		})
		if !<-done {
			r.t.Fatalf("%s has something under way", a.Record().Agent)
		}
	}
}

// TestConsumerOfAForgottenSessionDrains: P has written for D, in part, and has forgotten it when D, which was cut off, comes back
// and cancels. Bytes may have been written under that number, so D flushes before its blocks are safe.
func TestConsumerOfAForgottenSessionDrains(t *testing.T) {
	cut := []fault{{"status", 0, "lose"}, {"heartbeat-ack", 0, "lose"}, {"cancel", 0, "lose"}, {"heartbeat", 0, "lose"}, {"ack", 0, "lose"}}
	net := newFakeNet(append(cut, fault{"write", 1, "break"})...)
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		d.await(id, kvplane.Failed)
		p.await(id, kvplane.Sent)
		time.Sleep(time.Hour)
		p.forget(d.inc)
		answersLocked := func() int { return net.seen["status"] + net.seen["heartbeat-ack"] } // of CANCEL and of HEARTBEAT, whichever comes first
		answers := func() int {
			net.mu.Lock()
			defer net.mu.Unlock()
			return answersLocked()
		}
		net.mu.Lock()
		net.faults = nil
		told := answersLocked()
		net.mu.Unlock()
		for answers() == told {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
		if got := d.kinds(id); slices.Contains(got, "reusable") {
			t.Errorf("half a second after the answer D has reported %v; want the net delay of 1s first", got)
		}
		d.await(id, kvplane.Reusable)
		for range 3 {
			whole(t, p, d)
		}
	})
}

// TestForgottenPairWorksOn: whichever side has forgotten the other, the next transfer succeeds.
func TestForgottenPairWorksOn(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		forget := func(of *rig, whom metadata.Incarnation) { of.forget(whom) }
		for range 3 {
			whole(t, p, d)
		}
		time.Sleep(time.Hour)
		forget(d, p.inc)
		whole(t, p, d)
		time.Sleep(time.Hour)
		forget(p, d.inc)
		whole(t, p, d)
		time.Sleep(time.Hour)
		forget(p, d.inc)
		forget(d, p.inc)
		whole(t, p, d)
		time.Sleep(time.Hour)
		settled(t, p, d)
		for _, a := range d.agents {
			if n := a.Status().Peers; n != 2 {
				t.Errorf("%d peers are known; want 2", n)
			}
		}
	})
}

// TestVoidGenerationIsToldNothing: what waits for an engine ends when it turns out to be void, and the old generation,
// which is still connected, hears nothing of that.
func TestVoidGenerationIsToldNothing(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		whole(t, p, d)
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		time.Sleep(time.Second)
		dir.mu.Lock()
		next := append([]metadata.Record(nil), dir.records["d"]...)
		next[0].Generation++
		dir.records["d"] = next
		dir.mu.Unlock()
		net.mu.Lock()
		before := net.seen["status"]
		net.mu.Unlock()
		w := p.agents[0].owner
		w.engineCall(func() { w.suspectStale(w.agents[d.records[0].Agent]) })
		time.Sleep(time.Second)
		p.offer(id, d, 12, fromP)
		if r := p.await(id, kvplane.Sent)[0]; r.Reason != kvplane.Superseded {
			t.Errorf("reason is %s; want superseded", r.Reason)
		}
		time.Sleep(time.Second)
		net.mu.Lock()
		defer net.mu.Unlock()
		if n := net.seen["status"] - before; n > 0 {
			t.Errorf("the void generation was sent %d messages", n)
		}
	})
}

// TestLateWriteRequestOverwritesNothing: P has forgotten D when a copy of a write request comes that D has cancelled. Its blocks belong to another
// request by now.
func TestLateWriteRequestOverwritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newFakeNet()
		p, d, _ := pairOf(t, func() transport.Transport { return net.transport() }, side(1), side(1), kvplane.Times{})
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		time.Sleep(10 * time.Millisecond)
		// The write request as D has sent it, MAC and all.
		answer := make(chan []byte)
		d.agents[0].owner.engineCall(func() {
			o := d.agents[0].owner
			m := &wire.Message{Kind: wire.KindWriteRequest, LowWater: 1, Seq: 1, ID: id, Need: [2]int{0, 12}, Groups: toD, Wait: 30 * time.Second}
			b := wire.Encode(nil, wire.Header{From: o.self.Incarnation, Agent: o.self.Agent, To: p.records[0].Agent}, wire.Append(nil, m))
			answer <- o.agents[p.records[0].Agent].session.AppendMAC(b)
		})
		copied := <-answer
		d.abandon(id)
		d.await(id, kvplane.Reusable)
		mine := kvplane.NewTransferID() // another request gets the blocks
		d.fill(mine, toD[0], 12)
		time.Sleep(2 * time.Minute) // P: settled, nothing is under way
		p.forget(d.inc)             // as makeRoom does where the table of peers is full
		p.fill(id, fromP[0], 12)
		p.offer(id, d, 12, fromP) // a long prefill ends
		time.Sleep(10 * time.Millisecond)
		net.mu.Lock()
		net.ends[p.records[0].Agent].deliverLocked(transport.Incoming{Kind: transport.MessageReceived, Agent: d.records[0].Agent, Body: copied}, 0)
		net.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		if n := d.wrong(mine, toD[0], 0, 12); n > 0 {
			t.Errorf("%d bytes of another request on D were overwritten by a transfer that was reusable; P says %v", n, p.kinds(id))
		}
	})
}
