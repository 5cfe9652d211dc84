package agent

import (
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// verdicts plays what a rig has reported about a transfer to an Aggregate of its ranks.
func (r *rig) verdicts(id kvplane.TransferID) []sched.EngineOutcome {
	var ranks []metadata.Rank
	for _, rec := range r.records {
		ranks = append(ranks, rec.Rank)
	}
	all, out := sched.NewRankBarrier(ranks), []sched.EngineOutcome(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.reports {
		if x.ID != id {
			continue
		}
		if v := all.Step(x); v != sched.Nothing {
			out = append(out, v)
		}
	}
	return out
}

// overLinks runs a test with two engines in this process over each over that it has.
func overLinks(t *testing.T, ptp, dtp int, times kvplane.Times, test func(t *testing.T, p, d *rig)) {
	for _, over := range []string{"tcp", "nixl"} {
		t.Run(over, func(t *testing.T) {
			newTransport(t, over) // skips without it
			p, d, _ := pairOf(t, func() transport.Transport { return newTransport(t, over) }, side(ptp), side(dtp), times)
			test(t, p, d)
		})
	}
}

// TestFault54KVPlane: P dies after D has registered, while the two connect for the first time or P writes: D is told soon after the death, decode
// is not released, and the blocks come back. A write that ends in an error ends the same way.
func TestFault54KVPlane(t *testing.T) {
	twoEngines(t, metadata.Decode, metadata.Prefill, func(t *testing.T, _ string, d, p *rig, child *transporttest.Process) {
		ids := newIDs(6)
		for _, id := range ids {
			d.expect(id, p, [2]int{0, 12}, toD)
		}
		for _, id := range ids[1:] {
			child.Do(transporttest.Order{Do: "offer", Transfer: id}, nil)
		}
		child.Kill()
		start := time.Now()
		for _, id := range ids {
			d.over(id)
		}
		if took := time.Since(start); took > 10*time.Second { // the deadlines are 10 min
			t.Errorf("D had all ends %v after the death; want at most 10 s", took)
		}
		if got := d.verdicts(ids[0]); !slices.Equal(got, []sched.EngineOutcome{sched.Failed, sched.Closed}) {
			t.Errorf("the engine was told %v; want failed, then closed", got)
		}
		settled(t, d)
	})
	t.Run("write error", func(t *testing.T) {
		inBubble(t, newFakeNet(fault{"write", 1, "break"}), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
			id := kvplane.NewTransferID()
			d.expect(id, p, [2]int{0, 12}, toD)
			p.offer(id, d, 12, fromP)
			p.await(id, kvplane.Sent)
			time.Sleep(100 * time.Millisecond)
			if got := d.verdicts(id); !slices.Contains(got, sched.Failed) || slices.Contains(got, sched.Released) {
				t.Errorf("the engine was told %v; want failed", got)
			}
			d.abandon(id) // as the aggregate has the engine do
			time.Sleep(2 * time.Second)
			if got := d.verdicts(id); !slices.Equal(got, []sched.EngineOutcome{sched.Failed, sched.Closed}) {
				t.Errorf("the engine was told %v; want failed, then closed", got)
			}
		})
	})
}

// TestFault55KVPlane: the lease ends before D has room. D is told at once when it comes, nothing is written, and P
// counts the expiry.
func TestFault55KVPlane(t *testing.T) {
	times := kvplane.Times{Lease: 200 * time.Millisecond}
	overLinks(t, 2, 2, times, func(t *testing.T, p, d *rig) {
		id := kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		p.offer(id, d, 12, fromP)
		for _, r := range p.await(id, kvplane.Sent) {
			if r.Reason != kvplane.LeaseOver {
				t.Errorf("P's reason is %s; want lease_over", r.Reason)
			}
		}
		for _, m := range d.memory {
			clear(m)
		}
		d.expect(id, p, [2]int{0, 12}, toD)
		d.await(id, kvplane.Reusable)
		if got := d.verdicts(id); !slices.Equal(got, []sched.EngineOutcome{sched.Failed, sched.Closed}) {
			t.Errorf("the engine was told %v; want failed, then closed", got)
		}
		for i, m := range d.memory {
			if slices.ContainsFunc(m, func(b byte) bool { return b != 0 }) {
				t.Errorf("rank %d: something was written after the lease", i)
			}
		}
		for _, a := range p.agents {
			if got := a.Status().Served["lease_over"]; got != 1 {
				t.Errorf("P has counted %d expiries; want 1", got)
			}
		}
	})
}

// say has an agent send a message to another one, as if its core had.
func say(t *testing.T, from *rig, rank int, to string, m *wire.Message) {
	t.Helper()
	done := make(chan bool, 1)
	w := from.agents[rank].owner
	w.engineCall(func() {
		p := w.agents[to]
		if p != nil {
			w.send(p, m)
		}
		done <- p != nil
	})
	if !<-done {
		t.Fatalf("%s does not know %s", w.self.Agent, to)
	}
}

// TestFault56KVPlane: a completion that comes twice, late, for a number that nobody gave, with another word than before
// or from a rank that does not write: nothing but a counter changes. Decode is released by the distinct writers.
func TestFault56KVPlane(t *testing.T) {
	overLinks(t, 2, 1, patientTimes, func(t *testing.T, p, d *rig) {
		whole(t, p, d) // they know each other
		id, to := kvplane.NewTransferID(), d.records[0].Agent
		d.expect(id, p, [2]int{0, 12}, toD)
		for deadline := time.Now().Add(transporttest.Patience); p.agents[0].Status().WriteRequests+p.agents[1].Status().WriteRequests < 2; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing was registered")
			}
		}
		p.fill(id, fromP[0], 12)
		before := d.agents[0].Status().Dropped
		p.agents[0].Offer(kvplane.Offer{ID: id, Peer: d.inc, Tokens: 12, Groups: fromP})
		done := wire.Status{State: wire.Done, Tokens: 12}
		for range 3 {
			say(t, p, 0, to, &wire.Message{Kind: wire.KindDone, Seq: 2, Status: done})  // its own, early and again
			say(t, p, 0, to, &wire.Message{Kind: wire.KindDone, Seq: 1, Status: done})  // settled long ago
			say(t, p, 1, to, &wire.Message{Kind: wire.KindDone, Seq: 77, Status: done}) // never given
		}
		time.Sleep(100 * time.Millisecond)
		if got := d.kinds(id); slices.Contains(got, "ready") {
			t.Errorf("reported %v after the completion of one writer of two", got)
		}
		dropped := 0
		for why, n := range d.agents[0].Status().Dropped {
			dropped += n - before[why]
		}
		if dropped < 6 {
			t.Errorf("dropped %v, before %v; want all that had no effect", d.agents[0].Status().Dropped, before)
		}
		p.agents[1].Offer(kvplane.Offer{ID: id, Peer: d.inc, Tokens: 12, Groups: fromP})
		for _, r := range d.await(id, kvplane.Ready) {
			if r.K != 2 || r.N != 2 {
				t.Errorf("ready with %d of %d; want 2 of 2", r.K, r.N)
			}
		}
		if got := d.verdicts(id); !slices.Equal(got, []sched.EngineOutcome{sched.Released}) {
			t.Errorf("the engine was told %v; want released, once", got)
		}
	})
}

// TestFault57KVPlane: one rank of P never completes. After the deadline the transfer is given up for all ranks; what
// came is not released.
func TestFault57KVPlane(t *testing.T) {
	times := kvplane.Times{Wait: 700 * time.Millisecond, Deadline: 700 * time.Millisecond}
	overLinks(t, 2, 2, times, func(t *testing.T, p, d *rig) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.fill(id, fromP[0], 12)
		p.agents[0].Offer(kvplane.Offer{ID: id, Peer: d.inc, Tokens: 12, Groups: fromP})
		for deadline := time.Now().Add(transporttest.Patience); !slices.Contains(d.verdicts(id), sched.Failed); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("reported %v; want the deadline", d.kinds(id))
			}
		}
		d.abandon(id)
		d.over(id)
		if got := d.verdicts(id); !slices.Equal(got, []sched.EngineOutcome{sched.Failed, sched.Closed}) {
			t.Errorf("the engine was told %v; want failed, then closed", got)
		}
		p.abandon(id)
		settled(t, p, d)
	})
}
