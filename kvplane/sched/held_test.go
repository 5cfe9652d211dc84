package sched

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// TestAggregatorHeld: what a silent rank keeps pinned is shown with how long and why, until it has let go of it; what goes
// well is not.
func TestAggregatorHeld(t *testing.T) {
	a := NewAggregator(testEngine, grid(1, 2), kvplane.Times{Wait: time.Second, Deadline: time.Second, NetDelay: time.Second, Lease: time.Minute})
	ids := []kvplane.TransferID{kvplane.NewTransferID(), kvplane.NewTransferID(), kvplane.NewTransferID(), kvplane.NewTransferID()}
	var out Outcome
	want := func(now time.Duration, want map[metadata.Rank]Held) {
		t.Helper()
		if diff := cmp.Diff(want, a.Held(now)); diff != "" {
			t.Error(diff)
		}
	}
	expect := func(id kvplane.TransferID, blocks ...int32) Orders {
		return Orders{Expect: []kvplane.Expectation{{ID: id, Groups: []kvplane.BlockList{{Blocks: blocks}}}}}
	}
	for i, o := range []Orders{expect(ids[0], 1, 2), expect(ids[1], 3), {Offer: []kvplane.Offer{{ID: ids[2], Groups: []kvplane.BlockList{{Blocks: []int32{4}}}}}},
		{Queue: []Queued{{ID: ids[3]}}}} {
		a.Order(time.Duration(i), &o)
	}
	want(time.Second, map[metadata.Rank]Held{})
	r0, r1 := metadata.Rank{}, metadata.Rank{TP: 1}
	a.Step(time.Second, []RankReport{says(r0, 1, kvplane.Report{ID: ids[0], Kind: kvplane.Failed, Reason: kvplane.Short})}, &out)
	a.Order(2*time.Second, &Orders{Abandon: []Abandonment{{ID: ids[2]}, {ID: ids[3]}}})
	want(3*time.Second, map[metadata.Rank]Held{
		r0: {Transfers: 2, Blocks: 3, Seconds: 2, Reason: "short"}, r1: {Transfers: 2, Blocks: 3, Seconds: 2, Reason: "short"},
	})
	a.Step(3*time.Second, []RankReport{says(r0, 2, kvplane.Report{ID: ids[0], Kind: kvplane.Reusable}, kvplane.Report{ID: ids[2], Kind: kvplane.Sent})}, &out)
	want(4*time.Second, map[metadata.Rank]Held{r1: {Transfers: 2, Blocks: 3, Seconds: 3, Reason: "short"}})
	a.Step(5*time.Second, nil, &out) // the deadline of the second one, of which nobody has said anything
	want(5*time.Second, map[metadata.Rank]Held{
		r0: {Transfers: 1, Blocks: 1, Reason: "deadline"}, r1: {Transfers: 3, Blocks: 4, Seconds: 4, Reason: "short"},
	})
	a.Step(6*time.Second, []RankReport{
		says(r1, 1, kvplane.Report{ID: ids[0], Kind: kvplane.Ready}, kvplane.Report{ID: ids[1], Kind: kvplane.Ready}, kvplane.Report{ID: ids[2], Kind: kvplane.Sent}),
		says(r0, 3, kvplane.Report{ID: ids[1], Kind: kvplane.Failed}, kvplane.Report{ID: ids[1], Kind: kvplane.Reusable}),
	}, &out)
	want(7*time.Second, map[metadata.Rank]Held{})
}
