package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
)

// TestRebuildRemembersWhatWasGivenUp: what was abandoned before it was expected or offered, and what has served, is not
// begun after a rebuild either.
func TestRebuildRemembersWhatWasGivenUp(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		id, served := kvplane.NewTransferID(), kvplane.NewTransferID()
		p.offer(served, d, 12, fromP)
		d.expect(served, p, [2]int{0, 12}, toD)
		d.await(served, kvplane.Ready)
		p.await(served, kvplane.Sent)
		p.abandon(id)
		d.abandon(id)
		time.Sleep(100 * time.Millisecond)
		p.rebuild(0, net.transport(), dir)
		d.rebuild(0, net.transport(), dir)
		start := time.Now()
		p.offer(id, d, 12, fromP)
		d.expect(id, p, [2]int{0, 12}, toD)
		d.expect(served, p, [2]int{0, 12}, toD)
		p.offer(served, d, 12, fromP)
		d.await(id, kvplane.Reusable)
		p.await(id, kvplane.Sent)
		d.await(served, kvplane.Reusable)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("what had been given up ended after %v; want at once", took)
		}
		if diff := cmp.Diff(d.reasons(served), []string{"failed spent", "ready ", "reusable spent"}); diff != "" {
			t.Errorf("reports of what has served (-got +want):\n%s", diff)
		}
		if got := p.kinds(served); !slices.Equal(got, []string{"sent"}) {
			t.Errorf("P has reported %v of what has served; want one sent", got)
		}
		time.Sleep(3 * time.Minute)
		settled(t, p, d)
		for _, a := range []*Agent{p.agents[0], d.agents[0]} {
			if !blocked(t, a) {
				t.Error("the owner has a timer, or something to poll for")
			}
		}
		if n := len(p.agents[0].owner.producer.Outgoing) + len(d.agents[0].owner.consumer.Incoming); n > 0 {
			t.Errorf("%d ids are remembered for ever", n)
		}
	})
}

// TestRebuildDuringTheDrainOfTheDead: the peer is proven dead, and its last bytes are waited for when the agent is
// rebuilt: then nothing of them lands any more.
func TestRebuildDuringTheDrainOfTheDead(t *testing.T) {
	net := newFakeNet(fault{"write", 0, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		time.Sleep(10 * time.Millisecond)
		d.agents[0].Gone(p.inc)
		d.await(id, kvplane.Failed)
		if got := d.kinds(id); slices.Contains(got, "reusable") {
			t.Fatalf("reported %v before the drain", got)
		}
		d.rebuild(0, net.transport(), dir)
		d.await(id, kvplane.Reusable)
		settled(t, d)
	})
}
