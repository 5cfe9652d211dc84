package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
)

func TestTrapFailedSubmissionIsNotToldToD(t *testing.T) {
	inBubble(t, newFakeNet(fault{"write", 1, "refuse"}), 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		p.offer(id, d, 12, fromP)
		start := time.Now()
		d.expect(id, p, [2]int{0, 12}, toD)
		if r := d.await(id, kvplane.Failed)[0]; r.Reason != kvplane.SubmitFailed || r.Detail == "" {
			t.Errorf("D was told %s (%q); want submit_failed and why", r.Reason, r.Detail)
		}
		d.await(id, kvplane.Reusable)
		p.await(id, kvplane.Sent)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("D was told after %v; want at once", took)
		}
	})
}

// A transport that must be polled rings for a peer's message; whoever waits for an offer or a write request needs no
// polling meanwhile.
func TestTrapIdleWriterSleepsThroughALateRegistrationOrPollsForOne(t *testing.T) {
	net := newFakeNet()
	net.polled = true
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id, never := kvplane.NewTransferID(), kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		p.offer(id, d, 12, fromP)
		p.offer(never, d, 12, fromP) // nobody ever comes for it
		time.Sleep(time.Second)
		polling := 0
		for range 100 {
			time.Sleep(170 * time.Millisecond)
			answer := make(chan bool)
			p.agents[0].owner.engineCall(func() { answer <- p.agents[0].owner.outstanding() })
			if <-answer {
				polling++
			}
		}
		if polling > 10 { // now and then it looks whether the peer lives
			t.Errorf("in %d of 100 moments of waiting for write requests the owner was polling", polling)
		}
		start := time.Now()
		d.expect(id, p, [2]int{0, 12}, toD)
		d.await(id, kvplane.Ready)
		if took := time.Since(start); took > 50*time.Millisecond {
			t.Errorf("a late registration was served after %v", took)
		}
		if r := p.await(never, kvplane.Sent)[0]; r.Reason != kvplane.LeaseOver {
			t.Errorf("the offer that was never matched ended with %s; want lease_over", r.Reason)
		}
		time.Sleep(5 * time.Minute)
		before := p.agents[0].Status().Polls
		time.Sleep(time.Second)
		once := p.agents[0].Status().Polls - before
		time.Sleep(time.Hour)
		if polls := p.agents[0].Status().Polls - before - once; polls > once+2 {
			t.Errorf("%d polls in an idle hour", polls)
		}
	})
}

func TestTrapZeroBlockHandOffSendsNothing(t *testing.T) {
	inBubble(t, newFakeNet(), 2, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		for _, first := range []string{"offer", "expect"} {
			id := kvplane.NewTransferID()
			start := time.Now()
			if first == "offer" {
				p.offer(id, d, 12, fromP)
				time.Sleep(10 * time.Millisecond)
			}
			d.expect(id, p, [2]int{12, 12}, plantest.List(0)) // D holds everything
			if first == "expect" {
				time.Sleep(10 * time.Millisecond)
				p.offer(id, d, 12, fromP)
			}
			d.await(id, kvplane.Ready)
			for _, r := range p.await(id, kvplane.Sent) {
				if r.Reason != 0 || r.K != 1 {
					t.Errorf("%s first: P's end is %+v; want a whole one", first, r)
				}
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("%s first: P kept its blocks for %v", first, took)
			}
		}
	})
}

func TestTrapRanksThatWriteNothingAreNeverTold(t *testing.T) {
	for _, ptp := range []int{2, 4} {
		synctest.Test(t, func(t *testing.T) {
			mla := plantest.Spec{Heads: 1, Logical: 4, HeadBytes: 2, Blocks: 32, Stages: [][]int{{0, 1}}}
			from, to := mla, mla
			from.TP, to.TP = ptp, 2
			net := newFakeNet()
			p, d, _ := pairOf(t, func() transport.Transport { return net.transport() }, from, to, kvplane.Times{})
			id := kvplane.NewTransferID()
			p.fill(id, fromP[0], 12)
			start := time.Now()
			p.offer(id, d, 12, fromP)
			d.expect(id, p, [2]int{0, 12}, toD)
			d.await(id, kvplane.Ready)
			for _, r := range p.await(id, kvplane.Sent) {
				if r.Reason != 0 || r.K != r.N || r.N == 0 {
					t.Errorf("P's end is %+v; want a whole one", r)
				}
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("ranks that write nothing kept their blocks for %v", took)
			}
			if wrong := d.wrong(id, toD[0], 0, 12); wrong > 0 {
				t.Errorf("%d bytes on D are wrong", wrong)
			}
			wrote := slices.Clone(net.wrote)
			slices.Sort(wrote)
			if got := slices.Compact(wrote); len(got) != 2 || len(wrote) != 2 {
				t.Errorf("written: %v; want one writer for each of D's ranks", wrote)
			}
			settled(t, p, d)
		})
	}
}
