package agent

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// inBubble runs a test of two engines over a fake network on virtual time.
func inBubble(t *testing.T, net *fakeNet, ptp, dtp int, test func(t *testing.T, p, d *rig, dir *fakeDirectory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, d, dir := pairOf(t, func() transport.Transport { return net.transport() }, side(ptp), side(dtp), kvplane.Times{})
		test(t, p, d, dir)
	})
}

var (
	fromP = plantest.List(0, 5, 3, 9)
	toD   = plantest.List(0, 20, 2, 7)
)

// TestFaultsThatHeal: whatever happens to messages, the transfer arrives whole, once.
func TestFaultsThatHeal(t *testing.T) {
	for _, what := range []string{"write-request", "status", "done", "ack"} {
		for _, do := range []string{"lose", "double", "delay", "flip"} {
			for _, nth := range []int{0, 1, 2} {
				if nth == 0 && (do == "lose" || do == "flip") && what == "write-request" {
					continue // no write request ever arrives: TestNothingArrives
				}
				if nth == 0 && (do == "lose" || do == "flip") && what == "done" {
					continue // with a bad DONE nothing but the repeated STATUS arrives, which is nth 1 and 2
				}
				t.Run(fmt.Sprintf("%s %s %d", do, what, nth), func(t *testing.T) {
					inBubble(t, newFakeNet(fault{what, nth, do}), 2, 4, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
						id := kvplane.NewTransferID()
						p.fill(id, fromP[0], 12)
						d.expect(id, p, [2]int{0, 12}, toD)
						time.Sleep(time.Millisecond)
						p.offer(id, d, 12, fromP)
						d.await(id, kvplane.Ready)
						p.await(id, kvplane.Sent)
						if wrong := d.wrong(id, toD[0], 0, 12); wrong > 0 {
							t.Errorf("%d bytes on D are wrong", wrong)
						}
						time.Sleep(3 * time.Minute)
						settled(t, p, d)
						if got := d.kinds(id); len(got) != 4 {
							t.Errorf("D has reported %v; want ready from 4 ranks", got)
						}
					})
				})
			}
		}
	}
}

// TestFaultsThatFail: what P and D report, and how long after the negative word the blocks are safe.
func TestFaultsThatFail(t *testing.T) {
	for _, tc := range []struct {
		name      string
		faults    []fault
		tokens    int // computed by P; 12 are needed
		reason    []kvplane.Reason
		never     bool // the blocks must never be safe
		safeAfter time.Duration
		silent    bool // P never reports
	}{
		{name: "write breaks", faults: []fault{{"write", 1, "break"}}, tokens: 12, reason: []kvplane.Reason{kvplane.WriteFailed, kvplane.Stopped, kvplane.Sibling}, safeAfter: time.Second},
		{name: "every write breaks", faults: []fault{{"write", 0, "break"}}, tokens: 12, reason: []kvplane.Reason{kvplane.WriteFailed, kvplane.Stopped, kvplane.Sibling}, safeAfter: time.Second},
		{name: "write is refused", faults: []fault{{"write", 1, "refuse"}}, tokens: 12, reason: []kvplane.Reason{kvplane.SubmitFailed, kvplane.Stopped, kvplane.Sibling}},
		{name: "too many writes", faults: []fault{{"write", 1, "busy"}}, tokens: 12, reason: []kvplane.Reason{kvplane.Busy, kvplane.Stopped, kvplane.Sibling}},
		{name: "completion is withheld", faults: []fault{{"write", 1, "hold"}}, tokens: 12, reason: []kvplane.Reason{kvplane.Deadline, kvplane.Stopped}, never: true, silent: true},
		{name: "every completion is withheld", faults: []fault{{"write", 0, "hold"}}, tokens: 12, reason: []kvplane.Reason{kvplane.Deadline, kvplane.Stopped}, never: true, silent: true},
		{name: "P computed too few", tokens: 11, reason: []kvplane.Reason{kvplane.Short, kvplane.Stopped, kvplane.Sibling}},
		{name: "nothing arrives", faults: []fault{{"write-request", 0, "lose"}, {"cancel", 0, "lose"}}, tokens: 12, reason: []kvplane.Reason{kvplane.Deadline, kvplane.Stopped}, never: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newFakeNet(tc.faults...), 2, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
				id := kvplane.NewTransferID()
				p.fill(id, fromP[0], 12)
				p.offer(id, d, tc.tokens, fromP)
				start := time.Now()
				d.expect(id, p, [2]int{0, 12}, toD)
				for _, r := range d.await(id, kvplane.Failed) {
					if !slices.Contains(tc.reason, r.Reason) {
						t.Errorf("reason is %s (%s); want one of %v", r.Reason, r.Detail, tc.reason)
					}
				}
				if took := time.Since(start); took > 31*time.Second {
					t.Errorf("D was told after %v", took)
				}
				negative := time.Now()
				if tc.never {
					time.Sleep(time.Hour)
					if got := d.kinds(id); slices.Contains(got, "reusable") || slices.Contains(got, "ready") {
						t.Errorf("D has reported %v", got)
					}
					if s := d.agents[0].Status(); s.Quarantined[p.inc.ID()].Blocks != 3 {
						t.Errorf("quarantined blocks are %v; want 3 of %s", s.Quarantined, p.inc.ID())
					}
				} else {
					d.await(id, kvplane.Reusable)
					if took := time.Since(negative); took < tc.safeAfter {
						t.Errorf("reusable %v after failed; want at least %v", took, tc.safeAfter)
					}
				}
				if !tc.silent {
					p.await(id, kvplane.Sent)
				} else if got := p.kinds(id); len(got) > 1 {
					t.Errorf("P has reported %v; its write is in progress", got)
				}
				if !tc.never && !tc.silent {
					time.Sleep(3 * time.Minute)
					settled(t, p, d)
				}
			})
		})
	}
}

// TestCancelAtEveryStep gives the transfer up on either side at many moments. Each rank of D ends in ready, or in
// negative and safe; each rank of P in sent; nothing is held afterwards.
func TestCancelAtEveryStep(t *testing.T) {
	for _, who := range []string{"D", "P", "both"} {
		for _, after := range []time.Duration{0, 50, 150, 250, 350, 450, 600, 1000, 30000} {
			for _, offered := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s after %d µs, offered %v", who, after, offered), func(t *testing.T) {
					inBubble(t, newFakeNet(), 4, 2, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
						dir.slow = 100 * time.Microsecond
						id := kvplane.NewTransferID()
						p.fill(id, fromP[0], 12)
						d.expect(id, p, [2]int{0, 12}, toD)
						if offered {
							p.offer(id, d, 12, fromP)
						}
						time.Sleep(after * time.Microsecond)
						if who != "D" {
							p.abandon(id)
						}
						if who != "P" {
							d.abandon(id)
						}
						if offered {
							p.await(id, kvplane.Sent)
						}
						time.Sleep(5 * time.Minute)
						settled(t, p, d)
						d.mu.Lock()
						byRank := map[metadata.Rank][]string{}
						for _, r := range d.reports {
							byRank[r.Rank] = append(byRank[r.Rank], r.Kind.String())
						}
						d.mu.Unlock()
						for rank, got := range byRank {
							if !slices.Equal(got, []string{"ready"}) && !slices.Equal(got, []string{"failed", "reusable"}) {
								t.Errorf("D rank %s has reported %v", rank, got)
							}
							if got[0] == "ready" && d.wrong(id, toD[0], 0, 12) > 0 && len(byRank) == 2 && allReady(byRank) {
								t.Error("ready, but the bytes are wrong")
							}
						}
						if len(byRank) != 2 {
							t.Errorf("%d ranks of D have reported; want 2", len(byRank))
						}
					})
				})
			}
		}
	}
}

func allReady(byRank map[metadata.Rank][]string) bool {
	for _, got := range byRank {
		if got[0] != "ready" {
			return false
		}
	}
	return true
}

func TestAbandonBeforeTheRest(t *testing.T) {
	inBubble(t, newFakeNet(), 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		d.abandon(id)
		p.abandon(id)
		time.Sleep(time.Second)
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		d.await(id, kvplane.Reusable)
		p.await(id, kvplane.Sent)
		if diff := cmp.Diff(d.kinds(id), []string{"failed", "reusable"}); diff != "" {
			t.Errorf("D's reports differ (-got +want):\n%s", diff)
		}
	})
}
