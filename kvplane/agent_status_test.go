package kvplane

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestStatusCounts: what is counted of good and bad ends, and of a write and a quarantine that do not end.
func TestStatusCounts(t *testing.T) {
	inBubble(t, newFakeNet(fault{"write", 2, "refuse"}, fault{"write", 3, "break"}, fault{"write", 4, "hold"}), 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		for range 4 {
			id := NewTransferID()
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
