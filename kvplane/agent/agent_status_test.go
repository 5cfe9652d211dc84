package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
)

// TestStatusCounts: what is counted of good and bad ends, and of a write and a quarantine that do not end.
func TestStatusCounts(t *testing.T) {
	inBubble(t, newFakeNet(fault{"write", 2, "refuse"}, fault{"write", 3, "break"}, fault{"write", 4, "hold"}), 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		for range 4 {
			id := kvplane.NewTransferID()
			p.fill(id, fromP[0], 12)
			d.expect(id, p, [2]int{0, 12}, toD)
			p.offer(id, d, 12, fromP)
			time.Sleep(2 * time.Second)
		}
		time.Sleep(38 * time.Second) // 40 s after the fourth write was posted; 30 s after its deadline
		ps, ds := p.agents[0].Status(), d.agents[0].Status()
		if diff := cmp.Diff(ps.Failed, map[string]uint64{"submit_failed": 1, "write_failed": 1}); diff != "" {
			t.Errorf("failed writes (-got +want):\n%s", diff)
		}
		if diff := cmp.Diff(ps.Stuck, map[string]int{d.inc.ID(): 1}); diff != "" {
			t.Errorf("stuck writes (-got +want):\n%s", diff)
		}
		if diff := cmp.Diff(ps.Served, map[string]uint64{"done": 1, "submit_failed": 1, "write_failed": 1}); diff != "" {
			t.Errorf("ends on P (-got +want):\n%s", diff)
		}
		if diff := cmp.Diff(ds.Received, map[string]uint64{"done": 1, "submit_failed": 1, "write_failed": 1, "deadline": 1}); diff != "" {
			t.Errorf("ends on D (-got +want):\n%s", diff)
		}
		q := ds.Quarantined[p.inc.ID()]
		if len(ds.Quarantined) != 1 || q.Blocks != 3 || q.Seconds < 29 || q.Seconds > 31 {
			t.Errorf("quarantined is %+v; want 3 blocks for 30 s", ds.Quarantined)
		}
		if s := ps.Seen; s.Count == 0 || s.Sum > s.Max*float64(s.Count) {
			t.Errorf("seen is %+v", s)
		}
	})
}

func TestSeen(t *testing.T) {
	var s Seen
	for _, waited := range []time.Duration{0, 10 * time.Microsecond, 11 * time.Microsecond, 99 * time.Millisecond, time.Hour} {
		s.add(2, waited)
	}
	want := Seen{Count: 10, Sum: 2 * (10e-6 + 11e-6 + 99e-3 + 3600), Max: 3600, Buckets: [7]uint64{4, 2, 0, 0, 0, 2, 2}}
	if diff := cmp.Diff(s, want, cmp.Comparer(func(x, y float64) bool { return x-y < 1e-6 && y-x < 1e-6 })); diff != "" {
		t.Errorf("seen (-got +want):\n%s", diff)
	}
}

// stamped is a transport that has one thing to take in.
type stamped struct {
	*fakeTransport
	at time.Time
}

func (s stamped) Poll(out []transport.Incoming) []transport.Incoming {
	return append(out, transport.Incoming{Kind: transport.WriteEnded, Agent: "p@1/0/0/0", ID: 7, At: s.at})
}

// TestSeenCountsTheWakingUp: what the transport has stamped counts since then, however long the owner took to wake up;
// what nobody has announced to an owner that slept counts as unknown, not with the time that it slept.
func TestSeenCountsTheWakingUp(t *testing.T) {
	for _, tc := range []struct {
		name    string
		ago     time.Duration // of the stamp; 0: none
		slept   time.Duration
		woken   bool // the transport rang at last
		most    time.Duration
		least   time.Duration
		unknown uint64
	}{
		{name: "stamped, slept on", ago: 30 * time.Millisecond, slept: time.Hour, woken: true, least: 30 * time.Millisecond, most: 10 * time.Second},
		{name: "looked a moment ago", slept: 3 * time.Millisecond, least: 3 * time.Millisecond, most: 3 * time.Millisecond},
		{name: "slept, and was woken by something else", slept: time.Hour, unknown: 1},
		{name: "slept, and was rung for", slept: time.Hour, woken: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, now := restless(t)
			s := stamped{fakeTransport: newFakeNet().transport()}
			if tc.ago > 0 {
				s.at = time.Now().Add(-tc.ago)
			}
			w.cfg.Transport = s
			w.polledAt = *now
			*now += tc.slept
			if tc.woken {
				w.wokenAt = *now
			}
			w.poll()
			got := w.stats.Seen
			if got.Unknown != tc.unknown || got.Count != 1-tc.unknown || got.Max < tc.least.Seconds() || got.Max > tc.most.Seconds() {
				t.Errorf("seen is %+v; want %d unknown, else %v to %v", got, tc.unknown, tc.least, tc.most)
			}
		})
	}
}

// TestMessageOfAnUnreachablePeerCounts: what a peer says has its effect though it cannot be connected to. It is answered when
// that works.
func TestMessageOfAnUnreachablePeerCounts(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		far := net.ends[p.records[0].Agent]
		known := func(is bool) {
			net.mu.Lock()
			defer net.mu.Unlock()
			if delete(far.peers, d.records[0].Agent); is {
				far.peers[d.records[0].Agent] = true // so that it refuses to connect
			}
		}
		known(true)
		id := kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		d.expect(id, p, [2]int{0, 12}, toD)
		time.Sleep(50 * time.Millisecond)
		if s := p.agents[0].Status(); s.WriteRequests != 1 || len(s.Dropped) > 0 && s.Dropped["repeat"] == 0 {
			t.Errorf("status is %+v; want a registration", s)
		}
		known(false)
		p.offer(id, d, 12, fromP)
		d.await(id, kvplane.Ready)
		p.await(id, kvplane.Sent)
	})
}

// TestStuckWriteDoesNotMuteItsPeer: a write over a lost connection does not end, and so no new connection can be made. A cancel
// of another transfer frees prefill's blocks all the same, and decode hears of it when there is a connection.
func TestStuckWriteDoesNotMuteItsPeer(t *testing.T) {
	net := newFakeNet(fault{"write", 0, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		stuck, id := kvplane.NewTransferID(), kvplane.NewTransferID()
		d.expect(stuck, p, [2]int{0, 12}, toD)
		p.offer(stuck, d, 12, fromP)
		time.Sleep(10 * time.Millisecond)
		far := net.ends[p.records[0].Agent]
		net.mu.Lock()
		far.busy = true
		far.deliverLocked(transport.Incoming{Kind: transport.PeerLost, Agent: d.records[0].Agent, Err: errors.New("lost")}, hop)
		net.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		p.offer(id, d, 12, fromP)
		d.expect(id, p, [2]int{0, 12}, toD)
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		d.agents[0].Abandon(id, "left")
		for _, r := range p.await(id, kvplane.Sent) {
			if took := time.Since(began); r.Reason != kvplane.Cancelled || took > time.Second {
				t.Errorf("prefill's blocks came back after %v with %s; want at once, cancelled", took, r.Reason)
			}
		}
		net.mu.Lock()
		far.busy = false
		net.mu.Unlock()
		d.await(id, kvplane.Reusable)
	})
}
