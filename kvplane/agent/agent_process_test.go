package agent

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// agentVariable makes the test binary an engine's process: it names the transport and the role.
const agentVariable = "PDROUTER_TEST_AGENT_PEER"

// patientTimes are so long that no test below can pass because of one of them.
var patientTimes = kvplane.Times{Lease: 10 * time.Minute, Wait: 10 * time.Minute, Deadline: 10 * time.Minute}

// processRig is an engine with two ranks of 16 MiB, so that a kill finds writes under way.
func processRig(t *testing.T, over string, role metadata.Role, dir *fakeDirectory) *rig {
	s := side(2)
	s.HeadBytes = 16 << 10
	return newRig(t, s, rigOptions{
		transport: func() transport.Transport { return newTransport(t, over) },
		directory: dir, role: role, name: string(role), times: patientTimes,
	})
}

// TestAgentPeerProcess is the other engine of the tests below; on its own it does nothing.
func TestAgentPeerProcess(t *testing.T) {
	over, role, ok := strings.Cut(os.Getenv(agentVariable), " ")
	if !ok {
		t.Skip("only as the peer process of another test")
	}
	dir := &fakeDirectory{records: map[string][]metadata.Record{}}
	r := processRig(t, over, metadata.Role(role), dir)
	far := &rig{}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.NewFile(3, "reports"))
	answer := transporttest.Report{Kind: "ready", Ranks: r.records}
	for out.Encode(answer) == nil {
		var o transporttest.Order
		if in.Decode(&o) != nil {
			return
		}
		switch o.Do {
		case "meet":
			far.inc = o.Peers[0].Incarnation
			dir.mu.Lock()
			dir.records[far.inc.Engine] = o.Peers
			dir.mu.Unlock()
		case "offer":
			r.offer(o.Transfer, far, 12, fromP)
		case "expect":
			r.expect(o.Transfer, far, [2]int{0, 12}, toD)
		case "await":
			r.await(o.Transfer, kvplane.ReportKind(o.Await))
		}
		answer = transporttest.Report{Kind: "done"}
	}
}

// twoEngines runs a test with an engine of one role here and one of the other in a process of its own.
func twoEngines(t *testing.T, here, there metadata.Role, test func(t *testing.T, over string, near, far *rig, p *transporttest.Process)) {
	for _, over := range []string{"tcp", "nixl"} {
		t.Run(over, func(t *testing.T) {
			newTransport(t, over) // skips without it
			dir := &fakeDirectory{records: map[string][]metadata.Record{}}
			near := processRig(t, over, here, dir)
			p := transporttest.StartProcess(t, "TestAgentPeerProcess", agentVariable+"="+over+" "+string(there))
			dir.mu.Lock()
			dir.records[string(there)] = p.Ranks
			dir.mu.Unlock()
			p.Do(transporttest.Order{Do: "meet", Peers: near.records}, nil)
			test(t, over, near, &rig{inc: p.Ranks[0].Incarnation}, p)
		})
	}
}

// over waits until every rank here has made its last report about a transfer.
func (r *rig) over(id kvplane.TransferID) {
	r.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		kinds, n := r.kinds(id), 0
		for _, k := range kinds {
			if k == "ready" || k == "reusable" {
				n++
			}
		}
		if n == len(r.agents) {
			return
		}
		select {
		case <-r.changed:
		case <-deadline:
			r.t.Fatalf("of transfer %s was reported %v, and no more", id, kinds)
		}
	}
}

func newIDs(n int) []kvplane.TransferID {
	var ids []kvplane.TransferID
	for range n {
		ids = append(ids, kvplane.NewTransferID())
	}
	return ids
}

// TestProducerProcessKilled kills -9 the producer while some of its transfers are being written and others wait: all
// of the consumer's blocks come back.
func TestProducerProcessKilled(t *testing.T) {
	twoEngines(t, metadata.Decode, metadata.Prefill, func(t *testing.T, _ string, d, p *rig, child *transporttest.Process) {
		ids := newIDs(8)
		for _, id := range ids {
			d.expect(id, p, [2]int{0, 12}, toD)
		}
		for _, id := range ids[:5] {
			child.Do(transporttest.Order{Do: "offer", Transfer: id}, nil)
		}
		d.over(ids[0])
		start := time.Now()
		child.Kill()
		for _, id := range ids {
			d.over(id)
		}
		t.Logf("all is reusable %v after the kill", time.Since(start).Round(time.Millisecond))
		for _, id := range ids[5:] {
			if got := d.kinds(id); slices.Contains(got, "ready") {
				t.Errorf("a transfer that was never offered has reported %v", got)
			}
		}
		settled(t, d)
	})
}

// TestConsumerProcessKilled kills -9 the consumer: the producer gets all blocks back that it held for it, whether
// the consumer had come for them or not, without waiting for the lease.
func TestConsumerProcessKilled(t *testing.T) {
	twoEngines(t, metadata.Prefill, metadata.Decode, func(t *testing.T, _ string, p, d *rig, child *transporttest.Process) {
		ids := newIDs(8)
		for _, id := range ids[:5] {
			child.Do(transporttest.Order{Do: "expect", Transfer: id}, nil)
		}
		for _, id := range ids {
			p.offer(id, d, 12, fromP)
		}
		p.await(ids[0], kvplane.Sent)
		start := time.Now()
		child.Kill()
		for _, id := range ids {
			for _, r := range p.await(id, kvplane.Sent) {
				if r.Reason == kvplane.LeaseOver {
					t.Error("the lease was waited for")
				}
			}
		}
		t.Logf("all is free %v after the kill", time.Since(start).Round(time.Millisecond))
		settled(t, p)
	})
}

// served hands requests over until one arrives: a connection that was cut may cost an attempt.
func served(t *testing.T, d, p *rig, child *transporttest.Process, attempts int) {
	t.Helper()
	for range attempts {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		child.Do(transporttest.Order{Do: "offer", Transfer: id}, nil)
		d.over(id)
		child.Do(transporttest.Order{Do: "await", Transfer: id, Await: uint8(kvplane.Sent)}, nil)
		if !slices.Contains(d.kinds(id), "failed") {
			return
		}
		t.Logf("an attempt ended in %v", d.reasons(id))
		time.Sleep(200 * time.Millisecond)
	}
	t.Error("the pair does not work any more")
}

// TestProducerProcessPaused stops the producer in mid-write. Over tcp it is fenced: the blocks are free at once,
// nothing that it still sends lands in them, and when it has answered it is served again. NIXL has no fence: the
// blocks stay until the producer is dead.
func TestProducerProcessPaused(t *testing.T) {
	twoEngines(t, metadata.Decode, metadata.Prefill, func(t *testing.T, over string, d, p *rig, child *transporttest.Process) {
		ids := newIDs(12)
		for _, id := range ids {
			d.expect(id, p, [2]int{0, 12}, toD)
		}
		for _, id := range ids[:10] {
			child.Do(transporttest.Order{Do: "offer", Transfer: id}, nil)
		}
		child.Stop()
		for _, id := range ids {
			d.abandon(id)
		}
		if over == "nixl" {
			time.Sleep(2 * time.Second) // of looking at the process
			if got := d.kinds(ids[11]); slices.Contains(got, "reusable") {
				t.Errorf("reported %v; silence is no death", got)
			}
			if n := d.agents[0].Status().Quarantined[p.inc.ID()].Blocks; n == 0 {
				t.Error("nothing is in quarantine")
			}
			child.Kill()
			for _, id := range ids {
				d.over(id)
			}
			settled(t, d)
			return
		}
		for _, id := range ids {
			d.over(id)
		}
		settled(t, d)
		for _, m := range d.memory {
			clear(m)
		}
		if err := child.Cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids[10:] {
			child.Do(transporttest.Order{Do: "offer", Transfer: id}, nil)
		}
		for _, id := range ids {
			child.Do(transporttest.Order{Do: "await", Transfer: id, Await: uint8(kvplane.Sent)}, nil)
		}
		for i, m := range d.memory {
			if !bytes.Equal(m, make([]byte, len(m))) {
				t.Errorf("rank %d: bytes landed in blocks that were free", i)
			}
		}
		served(t, d, p, child, 2) // one is enough, unless the machine is so busy that the producer notices late
	})
}
