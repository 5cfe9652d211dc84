package agent

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// elsewhere publishes an engine's records as those of another host.
func (d *fakeDirectory) elsewhere(engine string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[engine] = slices.Clone(d.records[engine])
	for i := range d.records[engine] {
		d.records[engine][i].Process.Boot = "2b3f0e6c-0000-0000-0000-000000000000"
	}
}

// publish puts one rank's new record in the place of its old one.
func (d *fakeDirectory) publish(r metadata.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	records := slices.Clone(d.records[r.Engine])
	for i := range records {
		if records[i].Rank == r.Rank {
			r.Process = records[i].Process // as the test has it
			records[i] = r
		}
	}
	d.records[r.Engine] = records
}

// rebuild gives one rank a new transport and publishes its new record.
func (r *rig) rebuild(rank int, t transport.Transport, dir *fakeDirectory) {
	r.t.Helper()
	record, err := r.agents[rank].Rebuild(t)
	if err != nil {
		r.t.Fatal(err)
	}
	r.records[rank] = record
	dir.publish(record)
}

// whole hands one request over and checks every byte.
func whole(t *testing.T, p, d *rig) {
	t.Helper()
	id := kvplane.NewTransferID()
	p.fill(id, fromP[0], 12)
	p.offer(id, d, 12, fromP)
	d.expect(id, p, [2]int{0, 12}, toD)
	d.await(id, kvplane.Ready)
	p.await(id, kvplane.Sent)
	if wrong := d.wrong(id, toD[0], 0, 12); wrong > 0 {
		t.Errorf("%d bytes are wrong", wrong)
	}
}

// meet begins a transfer between engines of which one does not know yet that an agent of the other was rebuilt. It may
// fail: what P had offered was owed to the old agent. But it ends.
func meet(t *testing.T, p, d *rig) {
	t.Helper()
	id := kvplane.NewTransferID()
	p.offer(id, d, 12, fromP)
	d.expect(id, p, [2]int{0, 12}, toD)
	p.await(id, kvplane.Sent)
	d.over(id)
}

// TestRebuildEndsQuarantine: where nothing else helps, D takes another transport under another name. The blocks that a
// silent peer of another host might have written are safe then; what it does later through the old name reaches nobody;
// the pair works again.
func TestRebuildEndsQuarantine(t *testing.T) {
	net := newFakeNet(fault{"write", 2, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		dir.elsewhere("p")
		whole(t, p, d)
		held, queued := kvplane.NewTransferID(), kvplane.NewTransferID()
		d.expect(held, p, [2]int{0, 12}, toD)
		p.offer(held, d, 12, fromP)
		d.await(held, kvplane.Failed)
		time.Sleep(time.Hour)
		if s := d.agents[0].Status(); s.Quarantined[p.inc.ID()].Blocks != 3 || s.Quarantined[p.inc.ID()].Seconds < 3500 {
			t.Errorf("quarantined is %+v; want 3 blocks for an hour", s.Quarantined)
		}
		d.expect(queued, p, [2]int{0, 12}, toD)
		time.Sleep(time.Second)

		old := d.records[0].Agent
		d.rebuild(0, net.transport(), dir)
		if got, want := d.agents[0].Record().Agent, old+"#2"; got != want {
			t.Errorf("the agent is called %s; want %s", got, want)
		}
		d.await(held, kvplane.Reusable)
		if diff := cmp.Diff(d.reasons(queued), []string{"failed closing", "reusable closing"}); diff != "" {
			t.Errorf("reports of the other transfer differ (-got +want):\n%s", diff)
		}
		settled(t, d)
		if _, err := d.agents[0].Rebuild(net.transport()); !errors.Is(err, ErrTooSoon) {
			t.Errorf("the second rebuild: %v; want ErrTooSoon", err)
		}
		meet(t, p, d)
		whole(t, p, d)
		net.kill(old) // its write to the old name ends
		time.Sleep(3 * time.Minute)
		d.rebuild(0, net.transport(), dir)
		meet(t, p, d)
		whole(t, p, d)
		if got, want := d.agents[0].Record().Agent, old+"#3"; got != want {
			t.Errorf("the agent is called %s; want %s", got, want)
		}
	})
}

// TestRebuildBesideThePeer: a peer on the same host copies by itself, so that only its death frees the blocks.
func TestRebuildBesideThePeer(t *testing.T) {
	net := newFakeNet(fault{"write", 0, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		d.await(id, kvplane.Failed)
		d.rebuild(0, net.transport(), dir)
		time.Sleep(time.Hour)
		if got := d.kinds(id); !slices.Equal(got, []string{"failed"}) {
			t.Fatalf("D has reported %v though the peer lives on this host", got)
		}
		s := d.agents[0].Status()
		if s.Quarantined[p.inc.ID()].Blocks != 3 || s.PinnedBlocks != 3 || s.Expectations != 1 {
			t.Errorf("status is %+v; want 3 blocks still in quarantine", s)
		}
		d.agents[0].Gone(p.inc)
		d.await(id, kvplane.Reusable)
		settled(t, d)
	})
}

// gpus publishes an engine's records as those of GPUs.
func (d *fakeDirectory) gpus(engine string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[engine] = slices.Clone(d.records[engine])
	for i := range d.records[engine] {
		d.records[engine][i].Layout.MemoryType = "vram"
	}
}

// TestRebuildProvesNothing: the old transport could not be closed, or the peer's GPU may reach this one's from another host. A
// rebuild frees nothing then: the blocks count as near, and are safe when the peer's process is proven dead.
func TestRebuildProvesNothing(t *testing.T) {
	for _, how := range []string{"close error", "gpus", "neither"} {
		t.Run(how, func(t *testing.T) {
			net := newFakeNet(fault{"write", 0, "hold"})
			inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
				dir.elsewhere("p")
				free := how == "neither"
				switch how {
				case "close error":
					net.ends[d.records[0].Agent].sticks = true
				case "gpus":
					dir.gpus("p")
					d.agents[0].owner.post(func() { d.agents[0].owner.self.Layout.MemoryType = "vram" })
					d.agents[0].owner.cfg.Self.Layout.MemoryType = "vram"
				}
				id := kvplane.NewTransferID()
				d.expect(id, p, [2]int{0, 12}, toD)
				p.offer(id, d, 12, fromP)
				d.await(id, kvplane.Failed)
				near := func() int { return d.agents[0].Status().Quarantined[p.inc.ID()].Near }
				if n := near(); (n > 0) != (how == "gpus") {
					t.Errorf("before the rebuild %d blocks are near", n)
				}
				d.rebuild(0, net.transport(), dir)
				time.Sleep(time.Hour)
				if got := d.kinds(id); slices.Contains(got, "reusable") != free || (near() == 3) == free {
					t.Errorf("an hour after the rebuild D has reported %v, and %d blocks are near", got, near())
				}
				d.agents[0].Gone(p.inc)
				d.await(id, kvplane.Reusable)
				settled(t, d)
			})
		})
	}
}

// TestCloseErrorSendsNothing: prefill's transport could not be closed while a write was in progress. Its blocks may still be read.
func TestCloseErrorSendsNothing(t *testing.T) {
	for _, sticks := range []bool{false, true} {
		net := newFakeNet(fault{"write", 0, "hold"})
		inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
			net.ends[p.records[0].Agent].sticks = sticks
			id := kvplane.NewTransferID()
			d.expect(id, p, [2]int{0, 12}, toD)
			p.offer(id, d, 12, fromP)
			time.Sleep(10 * time.Millisecond)
			p.rebuild(0, net.transport(), dir)
			time.Sleep(time.Minute)
			if got := p.kinds(id); slices.Contains(got, "sent") == sticks {
				t.Errorf("close error %v: prefill has reported %v", sticks, got)
			}
		})
	}
}

// TestProducerRebuilt: P's own rebuild ends a write that never ends; its consumers are told or find out, and the pair
// works again, also while the directory still shows the old record now and then.
func TestProducerRebuilt(t *testing.T) {
	net := newFakeNet(fault{"write", 3, "hold"})
	inBubble(t, net, 2, 2, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		whole(t, p, d)
		id, later := kvplane.NewTransferID(), kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		p.offer(later, d, 12, fromP)
		time.Sleep(100 * time.Millisecond)
		stale := slices.Clone(dir.records["p"])
		for i := range p.agents {
			old := p.records[i].Agent
			p.rebuild(i, net.transport(), dir)
			net.kill(old)
		}
		p.await(id, kvplane.Sent)
		if diff := cmp.Diff(p.reasons(later), []string{"sent closing"}); diff != "" {
			t.Errorf("reports of the other offer differ (-got +want):\n%s", diff)
		}
		fresh := dir.records["p"]
		dir.mu.Lock()
		dir.records["p"] = stale
		dir.mu.Unlock()
		time.Sleep(10 * time.Second)
		dir.mu.Lock()
		dir.records["p"] = fresh
		dir.mu.Unlock()
		d.over(id) // one rank was not waited for by the write that was held
		meet(t, p, d)
		time.Sleep(10 * time.Second)
		whole(t, p, d)
		time.Sleep(3 * time.Minute)
		settled(t, p, d)
	})
}

// TestUnknownAgentsAreLookedUpRarely: whoever makes up names of rebuilt agents costs the directory a few look-ups.
func TestUnknownAgentsAreLookedUpRarely(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		whole(t, p, d)
		dir.mu.Lock()
		asked := dir.asked
		dir.mu.Unlock()
		for i := range 1000 {
			agent := d.records[0].Agent
			if i%2 == 0 {
				agent += "#7"
			}
			body := wire.Encode(nil, wire.Header{From: d.inc, Agent: agent + "0", To: p.records[0].Agent}, make([]byte, 64))
			net.mu.Lock()
			net.ends[p.records[0].Agent].deliverLocked(transport.Incoming{Kind: transport.MessageReceived, Body: body}, hop)
			net.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		dir.mu.Lock()
		defer dir.mu.Unlock()
		if n := dir.asked - asked; n == 0 || n > 6 {
			t.Errorf("the directory was asked %d times in a second; want a few", n)
		}
		if s := p.agents[0].Status(); s.Dropped["stranger"] < 400 {
			t.Errorf("dropped %v; want the names that nobody can have as strangers", s.Dropped)
		}
	})
}

func TestAgentEpoch(t *testing.T) {
	for name, want := range map[string]struct {
		base  string
		epoch uint64
	}{
		"d@1/0/0/0":     {"d@1/0/0/0", 1},
		"d@1/0/0/0#2":   {"d@1/0/0/0", 2},
		"d@1/0/0/0#31":  {"d@1/0/0/0", 31},
		"d#7@1/0/0/0":   {"d#7@1/0/0/0", 1},
		"d@1/0/0/0#":    {"d@1/0/0/0#", 1},
		"d@1/0/0/0#1":   {"d@1/0/0/0#1", 1},
		"d@1/0/0/0#two": {"d@1/0/0/0#two", 1},
		"":              {"", 1},
	} {
		if base, epoch := agentEpoch(name); base != want.base || epoch != want.epoch {
			t.Errorf("%q is %q, %d; want %q, %d", name, base, epoch, want.base, want.epoch)
		}
	}
}

// TestRebuiltPeerCostsNoTransfer: whoever has lost the connection to an agent asks the directory before it begins a
// transfer with that engine, and so meets the agent that the rank was rebuilt as.
func TestRebuiltPeerCostsNoTransfer(t *testing.T) {
	for _, who := range []string{"p", "d"} {
		t.Run(who, func(t *testing.T) {
			net := newFakeNet()
			inBubble(t, net, 2, 4, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
				whole(t, p, d)
				r := map[string]*rig{"p": p, "d": d}[who]
				old := r.records[1].Agent
				r.rebuild(1, net.transport(), dir)
				net.kill(old)
				time.Sleep(10 * time.Second)
				dir.mu.Lock()
				dir.slow, dir.asked = 100*time.Millisecond, 0
				dir.mu.Unlock()
				whole(t, p, d)
				whole(t, p, d)
				if dir.asked > 6 {
					t.Errorf("the directory was asked %d times; want once by each rank that had lost the agent, and by the new one", dir.asked)
				}
			})
		})
	}
}

// TestRebuiltInSilence: the transport does not notice that the old agent is gone. Whoever gets no answer to its
// write request asks the directory, so that the rebuilt rank is met, also one that writes nothing.
func TestRebuiltInSilence(t *testing.T) {
	net := newFakeNet()
	synctest.Test(t, func(t *testing.T) {
		sp := side(4)
		sp.Heads = 1 // the others only notify
		d4 := side(1)
		d4.Heads = 1
		p, d, dir := pairOf(t, func() transport.Transport { return net.transport() }, sp, d4, kvplane.Times{})
		whole(t, p, d)
		p.rebuild(3, net.transport(), dir)
		id := kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		p.offer(id, d, 12, fromP)
		d.expect(id, p, [2]int{0, 12}, toD)
		p.await(id, kvplane.Sent)
		d.over(id)
		time.Sleep(time.Minute)
		next := kvplane.NewTransferID()
		p.offer(next, d, 12, fromP)
		d.expect(next, p, [2]int{0, 12}, toD)
		d.await(next, kvplane.Ready)
		for _, x := range p.await(next, kvplane.Sent) {
			if x.Reason != 0 {
				t.Errorf("rank %s has kept its blocks until %s", x.Rank, x.Reason)
			}
		}
		time.Sleep(5 * time.Minute)
		settled(t, p, d)
	})
}
