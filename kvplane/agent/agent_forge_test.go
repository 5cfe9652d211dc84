package agent

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/kvplane/wire/wiretest"
	"pdrouter/metadata"
)

// inject has a message arrive at an agent as if the network had brought it.
func (n *fakeNet) inject(to, claimed string, body []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends[to].deliverLocked(transport.Incoming{Kind: transport.MessageReceived, Agent: claimed, Body: body}, 0)
}

// TestForgedMessagesChangeNothing: whoever can reach both agents, but has neither's key, plays every message in the
// other's name.
func TestForgedMessagesChangeNothing(t *testing.T) {
	net := newFakeNet(fault{"write", 0, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		time.Sleep(10 * time.Millisecond)
		before := []Status{p.agents[0].Status(), d.agents[0].Status()}
		if before[0].Writing != 1 || before[1].Expectations != 1 {
			t.Fatalf("the transfer is not under way: %+v", before)
		}
		pr, dr := p.records[0], d.records[0]
		stranger := wiretest.New(t, "x", 1, true)
		sent := 0
		for _, at := range [][2]metadata.Record{{pr, dr}, {dr, pr}} {
			forger := stranger
			forger.Record.Incarnation, forger.Record.Agent = at[0].Incarnation, at[0].Agent
			for seq := range uint64(4) {
				for _, m := range []*wire.Message{
					{Kind: wire.KindStatus, Seq: seq, Status: wire.Status{State: wire.Done, Tokens: 12}},
					{Kind: wire.KindStatus, Seq: seq, Status: wire.Status{State: wire.Failed, Reason: kvplane.WriteFailed}},
					{Kind: wire.KindStatus, Seq: seq, Status: wire.Status{State: wire.NotBegun, Reason: kvplane.Aborted}},
					{Kind: wire.KindDone, Seq: seq, Status: wire.Status{State: wire.Done, Tokens: 12}},
					{Kind: wire.KindCancel, LowWater: 1 << 40, Seq: seq, ID: id},
					{Kind: wire.KindAck, LowWater: 1 << 40, Settled: []uint64{1, 2}},
					{Kind: wire.KindWriteRequest, LowWater: 2, Seq: seq, ID: id, Need: [2]int{0, 12}, Groups: toD},
				} {
					body := forger.Write(t, wiretest.Party{Record: at[1]}, m)
					for _, claimed := range []string{"", at[0].Agent} { // not every transport knows a sender
						net.inject(at[1].Agent, claimed, slices.Clone(body))
						net.inject(at[1].Agent, claimed, wiretest.EncodedAs(wiretest.HeaderOf(forger, at[1]), wire.Append(nil, m)))
						sent += 2
					}
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
		forged := 0
		for i, r := range []*rig{p, d} {
			s := r.agents[0].Status()
			forged += s.Dropped["forged"]
			if s.Writing != before[i].Writing || s.Expectations != before[i].Expectations || s.Offers != before[i].Offers ||
				s.WriteRequests != before[i].WriteRequests || s.PinnedBlocks != before[i].PinnedBlocks || s.HeldBlocks != before[i].HeldBlocks {
				t.Errorf("%s: books were %+v and are %+v", r.inc.Engine, before[i], s)
			}
			if got := r.kinds(id); len(got) != 0 {
				t.Errorf("%s has reported %v", r.inc.Engine, got)
			}
		}
		if forged != sent {
			t.Errorf("%d messages were counted as forged; want %d", forged, sent)
		}
		net.heal()
		// What the true peer says is heard as before.
		next := kvplane.NewTransferID()
		p.fill(next, fromP[0], 12)
		d.expect(next, p, [2]int{0, 12}, plantest.List(0, 10, 11, 12))
		p.offer(next, d, 12, fromP)
		d.await(next, kvplane.Ready)
		p.await(next, kvplane.Sent)
	})
}

// heal ends all faults.
func (n *fakeNet) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = nil
}

// TestParkedMessageIsVerified: a message that waits for its sender's record is believed no earlier than any other.
func TestParkedMessageIsVerified(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		dir.slow = 100 * time.Millisecond
		stranger := wiretest.New(t, "x", 1, true)
		stranger.Record.Incarnation, stranger.Record.Agent = d.inc, d.records[0].Agent
		id := kvplane.NewTransferID()
		m := &wire.Message{Kind: wire.KindWriteRequest, Seq: 1, ID: id, Need: [2]int{0, 12}, Groups: toD, Wait: time.Second}
		for range 3 {
			net.inject(p.records[0].Agent, d.records[0].Agent, stranger.Write(t, wiretest.Party{Record: p.records[0]}, m))
		}
		time.Sleep(time.Second)
		s := p.agents[0].Status()
		if s.Peers != 1 || s.WriteRequests != 0 || s.Dropped["forged"] != 3 {
			t.Errorf("%d peers, %d write requests, dropped %v; want 1 peer, no write request, 3 forged", s.Peers, s.WriteRequests, s.Dropped)
		}
	})
}

func TestPeerWithoutKeyIsRefused(t *testing.T) {
	inBubble(t, newFakeNet(), 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		dir.mu.Lock()
		for _, name := range []string{"p", "d"} {
			records := slices.Clone(dir.records[name])
			records[0].Key = nil
			dir.records[name] = records
		}
		dir.mu.Unlock()
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		if r := d.await(id, kvplane.Failed)[0]; r.Reason != kvplane.NoKey {
			t.Errorf("D says %s (%s); want no_key", r.Reason, r.Detail)
		}
		d.await(id, kvplane.Reusable)
		if r := p.await(id, kvplane.Sent)[0]; r.Reason != kvplane.NoKey {
			t.Errorf("P says %s (%s); want no_key", r.Reason, r.Detail)
		}
		if a, b := p.agents[0].Record(), d.agents[0].Record(); len(a.Key) != 32 || bytes.Equal(a.Key, b.Key) {
			t.Errorf("keys are %x and %x; want two of 32 bytes", a.Key, b.Key)
		}
	})
}
