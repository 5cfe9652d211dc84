package agent

import (
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane"
)

// TestQueuedTransferOutlivesTheLease: D says that it will come, and P keeps the blocks for several leases.
func TestQueuedTransferOutlivesTheLease(t *testing.T) {
	for _, faults := range [][]fault{nil, {{"heartbeat", 2, "lose"}}, {{"heartbeat-ack", 2, "lose"}}, {{"heartbeat", 0, "double"}}, {{"heartbeat", 0, "delay"}}} {
		inBubble(t, newFakeNet(faults...), 2, 4, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
			id := kvplane.NewTransferID()
			p.fill(id, fromP[0], 12)
			p.offer(id, d, 12, fromP)
			for _, a := range d.agents {
				a.Queue(id, p.inc)
			}
			time.Sleep(100 * time.Second)
			d.expect(id, p, [2]int{0, 12}, toD)
			d.await(id, kvplane.Ready)
			for _, r := range p.await(id, kvplane.Sent) {
				if r.Reason != 0 {
					t.Errorf("%v: P's end is %s; want none", faults, r.Reason)
				}
			}
			if wrong := d.wrong(id, toD[0], 0, 12); wrong > 0 {
				t.Errorf("%v: %d bytes are wrong", faults, wrong)
			}
			settled(t, p, d)
		})
	}
}

// TestQueuedTransferIsGivenUp: P frees its blocks at once when D wants them no more, and D hears at once when P gives
// them up.
func TestQueuedTransferIsGivenUp(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		ids := []kvplane.TransferID{kvplane.NewTransferID(), kvplane.NewTransferID()}
		for _, id := range ids {
			p.offer(id, d, 12, fromP)
			for _, a := range d.agents {
				a.Queue(id, p.inc)
			}
		}
		time.Sleep(time.Second)
		start := time.Now()
		d.abandon(ids[0])
		for _, r := range p.await(ids[0], kvplane.Sent) {
			if r.Reason != kvplane.Cancelled {
				t.Errorf("P's end is %s; want cancelled", r.Reason)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("P kept what D had given up for %v", took)
		}
		p.abandon(ids[1])
		for _, r := range d.await(ids[1], kvplane.Reusable) {
			if r.Reason != kvplane.Aborted || len(r.Groups) > 0 {
				t.Errorf("D was told %+v; want dead, without blocks", r)
			}
		}
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("D was told after %v; want a beat at most", took)
		}
		time.Sleep(10 * time.Minute)
		settled(t, p, d)
	})
}

// TestSilentProducerEndsWhatCountsOnIt: an agent that answers no heartbeat any more, with its connection up, is noticed long
// before the wait is over.
func TestSilentProducerEndsWhatCountsOnIt(t *testing.T) {
	inBubble(t, newFakeNet(fault{"heartbeat-ack", 0, "lose"}), 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		expected, queued := kvplane.NewTransferID(), kvplane.NewTransferID()
		start := time.Now()
		d.expect(expected, p, [2]int{0, 12}, toD)
		d.agents[0].Queue(queued, p.inc)
		for _, id := range []kvplane.TransferID{expected, queued} {
			if r := d.await(id, kvplane.Failed)[0]; r.Reason != kvplane.PeerGone {
				t.Errorf("D was told %s; want peer_gone", r.Reason)
			}
			d.await(id, kvplane.Reusable)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("D was told after %v", took)
		}
	})
}

// TestLegsThatDoNotBelongTogether: another ticket, or another prompt, is refused before a byte is written.
func TestLegsThatDoNotBelongTogether(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	for _, tc := range []struct {
		name    string
		p, d    [2][16]byte // ticket and hash
		want    kvplane.Reason
		details string
	}{
		{name: "the same", p: [2][16]byte{one, two}, d: [2][16]byte{one, two}},
		{name: "unknown to P", d: [2][16]byte{one, two}},
		{name: "tokens unknown to D", p: [2][16]byte{one, two}, d: [2][16]byte{one}},
		{name: "D without a ticket", p: [2][16]byte{one, two}, d: [2][16]byte{{}, two}, want: kvplane.Ticket,
			details: "ticket: 01000000000000000000000000000000 on P, 00000000000000000000000000000000 on D"},
		{name: "another ticket", p: [2][16]byte{one, one}, d: [2][16]byte{two, two}, want: kvplane.Ticket,
			details: "ticket: 01000000000000000000000000000000 on P, 02000000000000000000000000000000 on D"},
		{name: "other tokens", p: [2][16]byte{one, one}, d: [2][16]byte{one, two}, want: kvplane.Tokens,
			details: "token hash: 01000000000000000000000000000000 on P, 02000000000000000000000000000000 on D"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			net := newFakeNet()
			inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
				id := kvplane.NewTransferID()
				p.agents[0].Offer(kvplane.Offer{ID: id, Peer: d.inc, Tokens: 12, Groups: fromP, Ticket: tc.p[0], Hash: tc.p[1]})
				d.agents[0].Expect(kvplane.Expectation{ID: id, Peer: p.inc, Need: [2]int{0, 12}, Groups: toD, Ticket: tc.d[0], Hash: tc.d[1]})
				if tc.want == 0 {
					d.await(id, kvplane.Ready)
					p.await(id, kvplane.Sent)
					return
				}
				r := d.await(id, kvplane.Failed)[0]
				if r.Reason != tc.want || !strings.Contains(r.Detail, tc.details) {
					t.Errorf("D was told %s, %q; want %s, %q", r.Reason, r.Detail, tc.want, tc.details)
				}
				d.await(id, kvplane.Reusable)
				if r := p.await(id, kvplane.Sent)[0]; r.Reason != tc.want {
					t.Errorf("P's end is %s; want %s", r.Reason, tc.want)
				}
				if len(net.wrote) > 0 {
					t.Errorf("written: %v", net.wrote)
				}
			})
		})
	}
}
