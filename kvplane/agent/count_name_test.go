package agent

import (
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire/wiretest"
	"pdrouter/metadata"
)

// TestRecordsOfForeignAgents: an engine whose records name another engine's agents is not served, and what is known
// under those names stays as it is.
func TestRecordsOfForeignAgents(t *testing.T) {
	for name, alias := range map[string]func(victim metadata.Record) string{
		"known":   func(victim metadata.Record) string { return victim.Agent },
		"longer":  func(victim metadata.Record) string { return victim.Agent + "#2" },
		"no name": func(metadata.Record) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newFakeNet(), 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
				whole(t, p, d) // d knows p
				forged := p.records[0]
				forged.Engine, forged.Key = "x", wiretest.New(t, "x", 1, true).Record.Key
				forged.Agent = alias(p.records[0])
				dir.mu.Lock()
				dir.records["x"] = []metadata.Record{forged}
				dir.mu.Unlock()
				id := kvplane.NewTransferID()
				d.agents[0].Expect(kvplane.Expectation{ID: id, Peer: forged.Incarnation, Need: [2]int{0, 12}, Groups: toD})
				d.await(id, kvplane.Failed)
				d.await(id, kvplane.Reusable)
				if s := d.agents[0].Status(); s.Peers != 1 {
					t.Errorf("%d peers are known; want p only", s.Peers)
				}
				d.agents[0].Gone(forged.Incarnation)
				time.Sleep(time.Second)
				whole(t, p, d)
			})
		})
	}
}

// TestReleaseOfTwins: a peer that is forgotten takes nobody else's name with it.
func TestReleaseOfTwins(t *testing.T) {
	w, _ := restless(t)
	r := wiretest.New(t, "p", 1, false).Record
	old := w.addPeer(r)
	next := w.addPeer(r)
	old.gone = true
	w.release(old)
	if w.agents[r.Agent] != next || w.peers[old.id] != nil {
		t.Errorf("under the name is %v; want the peer that is left", w.agents[r.Agent])
	}
}

// TestFoundNamesTakenAgents: records that name an agent which is known are refused as a whole.
func TestFoundNamesTakenAgents(t *testing.T) {
	w, _ := restless(t)
	known := wiretest.New(t, "p", 1, false).Record
	p := w.addPeer(known)
	other := wiretest.New(t, "x", 1, false).Record
	other.Agent = known.Agent
	w.engines[other.Incarnation] = &engine{}
	w.resolved(other.Incarnation, []metadata.Record{other}, nil)
	if w.agents[known.Agent] != p || w.engines[other.Incarnation] != nil || len(w.peers) != 1 {
		t.Errorf("%d peers, and under the name is %+v", len(w.peers), w.agents[known.Agent])
	}
}
