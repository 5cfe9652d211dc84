package router

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// TestBooksCountOverStages enters what two stages of two decode ranks say of a transfer from three stages: each rank has
// its own number of writers, and only the last rank's word makes the transfer ready.
func TestBooksCountOverStages(t *testing.T) {
	b := newBooks(4)
	b.open("t", "p", "d", 4)
	at := time.Unix(100, 0)
	writers := map[metadata.Rank]int{{PP: 0, TP: 0}: 2, {PP: 0, TP: 1}: 2, {PP: 1, TP: 0}: 1, {PP: 1, TP: 1}: 1}
	left := len(writers)
	for rank, n := range writers {
		for k := 1; k <= n; k++ {
			b.note("d", kvplane.TransferEvent{Transfer: "t", Engine: "d", Rank: rank, Event: "counted", K: k, N: n}, at)
			b.note("p", kvplane.TransferEvent{Transfer: "t", Engine: "p", Rank: rank, Event: "counted", K: 9, N: 9}, at) // what P's ranks have sent
		}
		if page, _ := b.read("t"); page.Ready {
			t.Fatalf("ready while %d ranks are not", left)
		}
		for range 2 { // said twice, counted once
			b.note("d", kvplane.TransferEvent{Transfer: "t", Engine: "d", Rank: rank, Event: "ready", Blocks: 3}, at)
		}
		left--
	}
	page, readyAt := b.read("t")
	want := &Books{Ready: true, Blocks: 12, Counted: map[string]string{"0/0/0": "2/2", "0/0/1": "2/2", "0/1/0": "1/1", "0/1/1": "1/1"}}
	if diff := cmp.Diff(page, want); diff != "" || !readyAt.Equal(at) {
		t.Errorf("ready at %v; page (-got +want):\n%s", readyAt, diff)
	}
}

// TestFault41ReportsOfOthersTransfers: an engine's stream is believed about that engine's part in its own transfers. What it
// says of others' is not entered, and is counted.
func TestFault41ReportsOfOthersTransfers(t *testing.T) {
	at := time.Unix(100, 0)
	for name, c := range map[string]struct {
		from  string
		event kvplane.TransferEvent
	}{
		"ready, by a stranger":            {"x", kvplane.TransferEvent{Engine: "x", Event: "ready", Blocks: 3}},
		"ready, in decode's name":         {"x", kvplane.TransferEvent{Engine: "d", Event: "ready", Blocks: 3}},
		"ready, by prefill":               {"p", kvplane.TransferEvent{Engine: "p", Event: "ready", Blocks: 3}},
		"ready, by prefill as decode":     {"p", kvplane.TransferEvent{Engine: "d", Event: "ready", Blocks: 3}},
		"ready, by nobody":                {"d", kvplane.TransferEvent{Event: "ready", Blocks: 3}},
		"failed, by a stranger":           {"x", kvplane.TransferEvent{Engine: "x", Event: "negative", Reason: "no"}},
		"failed, in prefill's name":       {"x", kvplane.TransferEvent{Engine: "p", Event: "negative", Reason: "no"}},
		"written, by decode":              {"d", kvplane.TransferEvent{Engine: "d", Event: "written", Bytes: 1 << 40}},
		"written, by a stranger":          {"x", kvplane.TransferEvent{Engine: "p", Event: "written", Bytes: 1 << 40}},
		"counted, by a stranger":          {"x", kvplane.TransferEvent{Engine: "d", Event: "counted", K: 1, N: 1}},
		"counted, by another of its name": {"D", kvplane.TransferEvent{Engine: "d", Event: "counted", K: 1, N: 1}},
	} {
		b := newBooks(4)
		b.open("t", "p", "d", 1)
		b.open("u", "x", "d", 1) // the stranger has transfers of its own
		c.event.Transfer = "t"
		b.note(c.from, c.event, at)
		if page, _ := b.read("t"); cmp.Diff(page, &Books{}) != "" {
			t.Errorf("%s: got %+v; want an empty page", name, page)
		}
		if got := b.strangers(); got != 1 {
			t.Errorf("%s: %d reports counted; want 1", name, got)
		}
		for _, m := range b.totals() {
			if m.Blocks != 0 || m.Bytes != 0 {
				t.Errorf("%s: moved %+v; want nothing", name, m)
			}
		}
	}
}
