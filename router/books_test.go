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
			b.note(kvplane.TransferEvent{Transfer: "t", Engine: "d", Rank: rank, Event: "counted", K: k, N: n}, at)
			b.note(kvplane.TransferEvent{Transfer: "t", Engine: "p", Rank: rank, Event: "counted", K: 9, N: 9}, at) // what P's ranks have sent
		}
		if page, _ := b.read("t"); page.Ready {
			t.Fatalf("ready while %d ranks are not", left)
		}
		for range 2 { // said twice, counted once
			b.note(kvplane.TransferEvent{Transfer: "t", Engine: "d", Rank: rank, Event: "ready", Blocks: 3}, at)
		}
		left--
	}
	page, readyAt := b.read("t")
	want := &Books{Ready: true, Blocks: 12, Counted: map[string]string{"0/0/0": "2/2", "0/0/1": "2/2", "0/1/0": "1/1", "0/1/1": "1/1"}}
	if diff := cmp.Diff(page, want); diff != "" || !readyAt.Equal(at) {
		t.Errorf("ready at %v; page (-got +want):\n%s", readyAt, diff)
	}
}
