package agent

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
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

// TestQuarantineIsNotEndedByTime: what a peer may still write stays in quarantine until its death is proven, wherever it runs, and
// that is logged once.
func TestQuarantineIsNotEndedByTime(t *testing.T) {
	for _, where := range []string{"this host", "another host"} {
		t.Run(where, func(t *testing.T) {
			net := newFakeNet(fault{"write", 0, "hold"})
			inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
				if where == "another host" {
					dir.elsewhere("p")
				}
				var log bytes.Buffer
				d.agents[0].owner.engineCall(func() { d.agents[0].owner.log = slog.New(slog.NewTextHandler(&log, nil)) })
				id := kvplane.NewTransferID()
				d.expect(id, p, [2]int{0, 12}, toD)
				p.offer(id, d, 12, fromP)
				d.await(id, kvplane.Failed)
				time.Sleep(time.Hour)
				if got := d.kinds(id); !slices.Equal(got, []string{"failed"}) {
					t.Errorf("after an hour D has reported %v", got)
				}
				s := d.agents[0].Status()
				if q := s.Quarantined[p.inc.ID()]; q.Blocks != 3 || q.Seconds < 3500 || s.PinnedBlocks != 3 || s.Expectations != 1 {
					t.Errorf("status is %+v; want 3 blocks in quarantine for an hour", s)
				}
				if n := strings.Count(log.String(), "stay in quarantine"); n != 1 {
					t.Errorf("it was logged %d times; want once", n)
				}
				d.agents[0].Gone(p.inc)
				d.await(id, kvplane.Reusable)
				settled(t, d)
			})
		})
	}
}

// TestUnknownAgentsAreNotLookedUp: whoever makes up names of agents of a known engine costs the directory nothing.
func TestUnknownAgentsAreNotLookedUp(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		whole(t, p, d)
		dir.mu.Lock()
		asked := dir.asked
		dir.mu.Unlock()
		body := wire.Encode(nil, wire.Header{From: d.inc, Agent: d.records[0].Agent + "#2", To: p.records[0].Agent}, make([]byte, 64))
		for range 1000 {
			net.mu.Lock()
			net.ends[p.records[0].Agent].deliverLocked(transport.Incoming{Kind: transport.MessageReceived, Body: body}, hop)
			net.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		dir.mu.Lock()
		defer dir.mu.Unlock()
		if dir.asked != asked {
			t.Errorf("the directory was asked %d times", dir.asked-asked)
		}
		if n := p.agents[0].Status().Dropped["stranger"]; n != 1000 {
			t.Errorf("%d were dropped as strangers; want 1000", n)
		}
	})
}
