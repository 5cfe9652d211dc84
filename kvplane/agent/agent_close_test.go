package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/kvplane/transport/transporttest"
)

// closeAll closes every rank, twice.
func (r *rig) closeAll() {
	r.t.Helper()
	for _, a := range r.agents {
		for range 2 {
			if err := a.Close(); err != nil {
				r.t.Error(err)
			}
		}
	}
}

// reasons lists what was reported about a transfer, as "kind reason", of all ranks.
func (r *rig) reasons(id kvplane.TransferID) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, x := range r.reports {
		if x.ID == id {
			out = append(out, x.Kind.String()+" "+x.Reason.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestCloseConsumer: D's end is reported there before Close returns, and P is free at once, not after the lease.
func TestCloseConsumer(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		transferAll(t, p, d)
		matched, unmatched := kvplane.NewTransferID(), kvplane.NewTransferID()
		d.expect(matched, p, [2]int{0, 12}, toD)
		d.expect(unmatched, p, [2]int{0, 12}, toD)
		time.Sleep(50 * time.Microsecond) // registered, but not begun
		start := time.Now()
		d.closeAll()
		if took := time.Since(start); took > time.Second {
			t.Errorf("closing took %v", took)
		}
		for _, id := range []kvplane.TransferID{matched, unmatched} {
			if diff := cmp.Diff(d.reasons(id), []string{"failed closing", "reusable closing"}); diff != "" {
				t.Errorf("D has reported (-got +want):\n%s", diff)
			}
		}
		p.offer(matched, d, 12, fromP)
		for _, r := range p.await(matched, kvplane.Sent) {
			if r.Reason == kvplane.LeaseOver {
				t.Error("P has waited for the lease")
			}
		}
	})
}

// TestCloseProducer: P's end is reported there before Close returns, and D is told at once.
func TestCloseProducer(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		transferAll(t, p, d)
		offered, awaited := kvplane.NewTransferID(), kvplane.NewTransferID()
		p.offer(offered, d, 12, fromP)
		d.expect(awaited, p, [2]int{0, 12}, toD)
		time.Sleep(time.Second)
		start := time.Now()
		p.closeAll()
		if diff := cmp.Diff(p.reasons(offered), []string{"sent closing"}); diff != "" {
			t.Errorf("P has reported (-got +want):\n%s", diff)
		}
		for _, r := range d.await(awaited, kvplane.Failed) {
			if r.Reason != kvplane.Closing && r.Reason != kvplane.Stopped {
				t.Errorf("reason is %s; want closing", r.Reason)
			}
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("D was told after %v", took)
		}
		d.await(awaited, kvplane.Reusable)
		if took := time.Since(start); took > 2*time.Second { // a goodbye is followed by a flush
			t.Errorf("the blocks were reusable after %v", took)
		}
	})
}

// TestCloseUnderWrite: a write that never ends does not keep P open, and neither does a P that is silent keep D; what
// D cannot prove to be safe it does not call safe.
func TestCloseUnderWrite(t *testing.T) {
	inBubble(t, newFakeNet(fault{"write", 0, "hold"}), 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		time.Sleep(time.Second)
		start := time.Now()
		d.closeAll()
		p.closeAll()
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("closing both took %v", took)
		}
		if diff := cmp.Diff(d.reasons(id), []string{"failed closing"}); diff != "" {
			t.Errorf("D has reported (-got +want):\n%s", diff)
		}
		if got := p.kinds(id); !slices.Equal(got, []string{"sent"}) {
			t.Errorf("P has reported %v; want sent, once", got)
		}
	})
}

// TestCloseOverTCP: the transport can fence, so whatever P does, D's blocks are safe when Close returns.
func TestCloseOverTCP(t *testing.T) {
	p, d, _ := pairOf(t, func() transport.Transport { return tcp.New(tcp.Config{}) }, side(2), side(1), patientTimes)
	transferAll(t, p, d)
	id := kvplane.NewTransferID()
	d.expect(id, p, [2]int{0, 12}, toD)
	for deadline := time.Now().Add(transporttest.Patience); p.agents[0].Status().WriteRequests == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was registered")
		}
	}
	d.closeAll()
	if diff := cmp.Diff(d.reasons(id), []string{"failed closing", "reusable closing"}); diff != "" {
		t.Errorf("D has reported (-got +want):\n%s", diff)
	}
	p.offer(id, d, 12, fromP)
	p.await(id, kvplane.Sent)
	p.closeAll()
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

// TestCloseFreesWhatNobodyMayWrite: D closes while P's write is in progress. Its blocks are safe then if P can reach them through D's
// transport only, and that could be closed.
func TestCloseFreesWhatNobodyMayWrite(t *testing.T) {
	for how, free := range map[string]bool{"another host": true, "this host": false, "gpus": false, "close error": false} {
		t.Run(how, func(t *testing.T) {
			net := newFakeNet(fault{"write", 0, "hold"})
			inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
				if how != "this host" {
					dir.elsewhere("p")
				}
				a := d.agents[0]
				switch how {
				case "gpus":
					dir.gpus("p")
					a.owner.engineCall(func() { a.owner.self.Layout.MemoryType = "vram" })
				case "close error":
					net.ends[d.records[0].Agent].sticks = true
				}
				id := kvplane.NewTransferID()
				d.expect(id, p, [2]int{0, 12}, toD)
				p.offer(id, d, 12, fromP)
				d.await(id, kvplane.Failed)
				if err := a.Close(); (err != nil) != (how == "close error") {
					t.Errorf("close: %v", err)
				}
				a.err = nil // checked here
				if got := d.kinds(id); slices.Contains(got, "reusable") != free {
					t.Errorf("D has reported %v", got)
				}
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
			if err := p.agents[0].Close(); (err != nil) != sticks {
				t.Errorf("close: %v", err)
			}
			p.agents[0].err = nil // checked here
			if got := p.kinds(id); slices.Contains(got, "sent") == sticks {
				t.Errorf("close error %v: prefill has reported %v", sticks, got)
			}
		})
	}
}
