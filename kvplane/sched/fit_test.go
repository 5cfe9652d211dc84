package sched

import (
	"testing"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// TestFit: reports that are cut as Fit says are all taken by ParseRankReport, as none is sent twice.
func TestFit(t *testing.T) {
	// A decode engine with 2^15 + 1 queued legs (embed.maxLegs is 2^16) whose prefill engine goes: Failed and Reusable for each.
	r := RankReport{Engine: metadata.Incarnation{Engine: "d", Generation: 1}, Seq: 1}
	for range 1<<15 + 1 {
		id := kvplane.NewTransferID()
		for _, k := range []kvplane.ReportKind{kvplane.Failed, kvplane.Reusable} {
			r.Reports = append(r.Reports, kvplane.Report{ID: id, Kind: k, Order: kvplane.QueueOrder, Reason: kvplane.PeerGone})
		}
	}
	check := func() {
		t.Helper()
		if n := Fit(r.Reports); n < 1 || n >= len(r.Reports) {
			t.Fatalf("%d of %d reports fit; want some and not all", n, len(r.Reports))
		}
		for all := r.Reports; len(all) > 0; {
			n := Fit(all)
			r.Reports, all = all[:n], all[n:]
			if _, err := ParseRankReport(r.Marshal()); err != nil {
				t.Fatalf("%d reports: %v", n, err)
			}
		}
	}
	check()
	// A prefill engine with 64 offers of 2^16 + 1 blocks, most of them of a shared prefix, whose decode engine goes.
	r.Reports = nil
	for range 64 {
		r.Reports = append(r.Reports, kvplane.Report{ID: kvplane.NewTransferID(), Kind: kvplane.Sent, Order: kvplane.OfferOrder,
			Groups: []kvplane.BlockList{{Blocks: make([]int32, 1<<16+1)}}})
	}
	check()
}
