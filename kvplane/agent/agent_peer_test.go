package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/metadata"
)

func TestLeaseOverTellsD(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		start := time.Now()
		p.offer(id, d, 12, fromP)
		for _, r := range p.await(id, kvplane.Sent) {
			if r.Reason != kvplane.LeaseOver || r.K != 0 || r.N != 1 {
				t.Errorf("sent is %+v; want lease_over with 0 of 1", r)
			}
		}
		if took := time.Since(start).Round(time.Second); took != 30*time.Second {
			t.Errorf("blocks were held for %v; want 30s", took)
		}
		late := time.Now()
		d.expect(id, p, [2]int{0, 12}, toD)
		for _, r := range d.await(id, kvplane.Failed) {
			if r.Reason != kvplane.LeaseOver && r.Reason != kvplane.Stopped {
				t.Errorf("reason is %s; want lease_over", r.Reason)
			}
		}
		d.await(id, kvplane.Reusable)
		if took := time.Since(late); took > time.Second {
			t.Errorf("D was told after %v; want at once", took)
		}
		time.Sleep(3 * time.Minute)
		settled(t, p, d)
	})
}

func TestNoOfferEndsWithTheWait(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		for _, r := range d.await(id, kvplane.Failed) {
			if r.Reason != kvplane.Deadline && r.Reason != kvplane.NoOffer {
				t.Errorf("reason is %s; want deadline or no_offer", r.Reason)
			}
		}
		d.await(id, kvplane.Reusable)
		time.Sleep(3 * time.Minute)
		settled(t, p, d)
	})
}

func TestProducerKilled(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("write posted %v", held), func(t *testing.T) {
			net := newFakeNet(fault{"write", 0, "hold"})
			inBubble(t, net, 2, 2, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
				id := kvplane.NewTransferID()
				d.expect(id, p, [2]int{0, 12}, toD)
				if held {
					p.offer(id, d, 12, fromP)
				}
				time.Sleep(10 * time.Millisecond)
				start := time.Now()
				for _, r := range p.records {
					net.kill(r.Agent)
				}
				for _, r := range d.await(id, kvplane.Failed) {
					if r.Reason != kvplane.PeerGone {
						t.Errorf("reason is %s; want peer_gone", r.Reason)
					}
				}
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("D was told after %v", took)
				}
				time.Sleep(time.Hour) // silence is never death
				if got := d.kinds(id); slices.Contains(got, "reusable") {
					t.Fatalf("D has reported %v though nobody has proven P dead", got)
				}
				// P is started anew: its older process is gone.
				dir.mu.Lock()
				next := slices.Clone(dir.records["p"])
				for i := range next {
					next[i].Generation++
				}
				dir.records["p"] = next
				dir.mu.Unlock()
				d.await(id, kvplane.Reusable)
				settled(t, d)
			})
		})
	}
}

func TestProvenDeadNeedsADrain(t *testing.T) {
	net := newFakeNet(fault{"write", 0, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		time.Sleep(10 * time.Millisecond)
		net.kill(p.records[0].Agent)
		start := time.Now()
		d.agents[0].Gone(p.inc)
		d.await(id, kvplane.Failed)
		d.await(id, kvplane.Reusable)
		if took := time.Since(start); took < time.Second {
			t.Errorf("blocks were reusable %v after the proof; want the net delay of 1s", took)
		}
	})
}

func TestConsumerKilled(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 2, 2, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		time.Sleep(10 * time.Millisecond)
		net.kill(d.records[0].Agent)
		net.kill(d.records[1].Agent)
		p.offer(id, d, 12, fromP)
		p.await(id, kvplane.Sent)
		time.Sleep(3 * time.Minute)
		settled(t, p)
		// The next generation is served.
		next := newRig(t, side(2), rigOptions{
			transport: func() transport.Transport { return net.transport() }, directory: dir, role: metadata.Decode, name: "d", gen: 2,
		})
		whole(t, p, next)
	})
}

func TestStrangerIsNotServed(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		thief := newRig(t, side(1), rigOptions{
			transport: func() transport.Transport { return net.transport() }, directory: dir, role: metadata.Decode, name: "thief",
		})
		for _, first := range []bool{true, false} {
			id := kvplane.NewTransferID()
			p.fill(id, fromP[0], 12)
			if first {
				thief.expect(id, p, [2]int{0, 12}, toD)
				time.Sleep(10 * time.Millisecond)
			}
			p.offer(id, d, 12, fromP)
			if !first {
				time.Sleep(10 * time.Millisecond)
				thief.expect(id, p, [2]int{0, 12}, toD)
			}
			if r := thief.await(id, kvplane.Failed)[0]; r.Reason != kvplane.Stranger {
				t.Errorf("the stranger was told %s; want stranger", r.Reason)
			}
			d.expect(id, p, [2]int{0, 12}, toD)
			d.await(id, kvplane.Ready)
			p.await(id, kvplane.Sent)
			if wrong := d.wrong(id, toD[0], 0, 12); wrong > 0 {
				t.Errorf("%d bytes on D are wrong", wrong)
			}
		}
		for _, w := range net.wrote {
			if w != p.records[0].Agent+">"+d.records[0].Agent {
				t.Errorf("written: %s", w)
			}
		}
	})
}

func TestLookups(t *testing.T) {
	inBubble(t, newFakeNet(), 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		dir.err = errors.New("down")
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		if r := d.await(id, kvplane.Failed)[0]; r.Reason != kvplane.Handshake {
			t.Errorf("reason is %s; want handshake", r.Reason)
		}
		d.await(id, kvplane.Reusable)
		if r := p.await(id, kvplane.Sent)[0]; r.Reason != kvplane.Handshake {
			t.Errorf("reason is %s; want handshake", r.Reason)
		}
		// A failed look-up is forgotten; the next one is made once, however many wait for it.
		dir.mu.Lock()
		dir.err, dir.slow, dir.asked = nil, time.Second, 0
		dir.mu.Unlock()
		var ids []kvplane.TransferID
		for range 20 {
			id := kvplane.NewTransferID()
			ids = append(ids, id)
			d.expect(id, p, [2]int{4, 4}, plantest.List(0))
			p.offer(id, d, 4, plantest.List(0, 1))
		}
		for _, id := range ids {
			d.await(id, kvplane.Ready)
			p.await(id, kvplane.Sent)
		}
		if dir.asked != 2 {
			t.Errorf("the directory was asked %d times; want once by each side", dir.asked)
		}
	})
}

// TestLostForGood: a prefill engine's host is gone for good, in the midst of transfers, and nothing proves it. Its blocks are free by the fence. It is
// asked on how the fenced writes have ended, but seldom.
func TestLostForGood(t *testing.T) {
	times := kvplane.Times{Lost: 100 * time.Millisecond, Pause: 20 * time.Millisecond, Resend: 5 * time.Millisecond, Wait: 300 * time.Millisecond,
		Lease: 2 * time.Second, Deadline: 300 * time.Millisecond, NetDelay: 50 * time.Millisecond, Lookup: 100 * time.Millisecond}
	p, d, dir := pairOf(t, func() transport.Transport { return tcp.New(tcp.Config{}) }, side(1), side(1), times)
	ids := []kvplane.TransferID{}
	for range 5 {
		id := kvplane.NewTransferID()
		ids = append(ids, id)
		d.agents[0].Expect(kvplane.Expectation{ID: id, Peer: p.inc, Need: [2]int{0, 12}, Groups: toD, Wait: time.Minute})
	}
	time.Sleep(200 * time.Millisecond)
	_ = p.agents[0].owner.cfg.Transport.Close() // the host is gone
	dir.mu.Lock()
	dir.err = errors.New("not found") // its record's lease is over
	dir.mu.Unlock()
	for _, id := range ids {
		d.await(id, kvplane.Reusable)
	}
	asked := func() int { dir.mu.Lock(); defer dir.mu.Unlock(); return dir.asked }
	connects := func() int {
		answer := make(chan int)
		d.agents[0].owner.engineCall(func() { answer <- d.agents[0].owner.peers[1].attempts })
		return <-answer
	}
	for connects() < attemptsUntilLong {
		time.Sleep(10 * time.Millisecond)
	}
	tries, before := connects(), asked()
	time.Sleep(3 * time.Second)
	if n := connects() - tries; n > 3 {
		t.Errorf("%d attempts to connect in 3 s; want one each lease of 2 s", n)
	}
	if n := asked() - before; n > 3 {
		t.Errorf("%d look-ups in 3 s; want one each lease of 2 s", n)
	}
	dir.mu.Lock()
	dir.err = nil
	dir.mu.Unlock()
}
