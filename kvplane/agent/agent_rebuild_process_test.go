package agent

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// stopped runs a test with a consumer here and a producer in another process, over NIXL, that was stopped with writes
// under way, after which everything was given up here. elsewhere has the producer look as if on another host: UCX is
// given nothing but TCP then.
func stopped(t *testing.T, elsewhere bool, test func(d, p *rig, child *transporttest.Process, dir *fakeDirectory, ids []kvplane.TransferID)) {
	t.Helper()
	newTransport(t, "nixl") // skips without it
	if elsewhere {
		t.Setenv("UCX_TLS", "tcp")
	}
	dir := &fakeDirectory{records: map[string][]metadata.Record{}}
	d := processRig(t, "nixl", metadata.Decode, dir)
	child := transporttest.StartProcess(t, "TestAgentPeerProcess", agentVariable+"=nixl "+string(metadata.Prefill))
	dir.mu.Lock()
	dir.records[string(metadata.Prefill)] = child.Ranks
	dir.mu.Unlock()
	if elsewhere {
		dir.elsewhere(string(metadata.Prefill))
	}
	child.Do(transporttest.Order{Do: "meet", Peers: d.records}, nil)
	p := &rig{inc: child.Ranks[0].Incarnation}

	ids := newIDs(10)
	for _, id := range ids {
		d.expect(id, p, [2]int{0, 12}, toD)
	}
	for _, id := range ids[1:] {
		child.Do(transporttest.Order{Do: "offer", Transfer: id}, nil)
	}
	child.Stop()
	for _, id := range ids {
		d.abandon(id)
	}
	d.await(ids[0], kvplane.Failed)
	open := 0
	for _, id := range ids[1:] {
		if got := d.kinds(id); !slices.Equal(got, []string{"ready", "ready"}) {
			open++
		}
	}
	t.Logf("stopped with %d of %d writes not ended", open, len(ids)-1)
	if open == 0 {
		t.Fatal("every write had ended")
	}
	test(d, p, child, dir, ids)
}

// TestRebuildUnderStoppedProducer: a producer of another host, over TCP, is stopped in mid-write and nobody knows
// whether it lives. D rebuilds both ranks: its blocks are safe at once, and used again at once. When the producer goes
// on, nothing of it lands there, and it meets the new agents.
func TestRebuildUnderStoppedProducer(t *testing.T) {
	stopped(t, true, func(d, p *rig, child *transporttest.Process, dir *fakeDirectory, ids []kvplane.TransferID) {
		time.Sleep(1500 * time.Millisecond) // longer than any flush
		if got := d.kinds(ids[0]); slices.Contains(got, "reusable") {
			t.Errorf("D has reported %v of a producer that is silent", got)
		}
		for i := range d.agents {
			d.rebuild(i, newTransport(t, "nixl"), dir)
		}
		for _, id := range ids {
			d.over(id)
		}
		settled(t, d)
		var want [][]byte
		for i, m := range d.memory { // the next user's
			transporttest.Scribble(m, uint64(i))
			want = append(want, bytes.Clone(m))
		}
		if err := child.Cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			time.Sleep(50 * time.Millisecond)
			for i, m := range d.memory {
				if !bytes.Equal(m, want[i]) {
					t.Fatalf("rank %d: bytes have landed in blocks that were free", i)
				}
			}
		}
		child.Do(transporttest.Order{Do: "meet", Peers: dir.records[d.inc.Engine]}, nil)
		served(t, d, p, child, 5)
	})
}

// TestRebuildBesideStoppedProducer: the same on one host, where the producer copies by itself: D's blocks stay in
// quarantine through the rebuild, until the producer's process is dead.
func TestRebuildBesideStoppedProducer(t *testing.T) {
	stopped(t, false, func(d, p *rig, child *transporttest.Process, dir *fakeDirectory, ids []kvplane.TransferID) {
		for i := range d.agents {
			d.rebuild(i, newTransport(t, "nixl"), dir)
		}
		time.Sleep(1500 * time.Millisecond)
		held := 0
		for _, id := range ids {
			if !slices.Contains(d.kinds(id), "reusable") && !slices.Contains(d.kinds(id), "ready") {
				held++
			}
		}
		t.Logf("%d of %d transfers are still in quarantine", held, len(ids))
		if held == 0 || d.agents[0].Status().Quarantined[p.inc.ID()].Blocks == 0 {
			t.Errorf("%d transfers are in quarantine; status %v", held, d.agents[0].Status().Quarantined)
		}
		child.Kill()
		for _, id := range ids {
			d.over(id)
		}
		settled(t, d)
	})
}
