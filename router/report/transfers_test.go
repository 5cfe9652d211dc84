package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/control"
	"pdrouter/metadata"
)

// TestTransferCountsOverStages enters what two stages of two decode ranks say of a transfer from three stages: each rank has
// its own number of writers, and only the last rank's word makes the transfer ready.
func TestTransferCountsOverStages(t *testing.T) {
	b := newTransfers(4)
	b.Open("t", "p", "d", metadata.Rank{DP: 1, PP: 2, TP: 2})
	at := time.Unix(100, 0)
	writers := map[metadata.Rank]int{{PP: 0, TP: 0}: 2, {PP: 0, TP: 1}: 2, {PP: 1, TP: 0}: 1, {PP: 1, TP: 1}: 1}
	left := len(writers)
	for rank, n := range writers {
		b.Note("p", control.Event{Transfer: "t", Engine: "p", Rank: rank, Event: "sent", K: 9, N: 9, Bytes: 7}, at) // K and N of P's ranks are consumers
		if got, _ := b.read("t"); got.Ready {
			t.Fatalf("ready while %d ranks are not", left)
		}
		for range 2 { // said twice, counted once
			b.Note("d", control.Event{Transfer: "t", Engine: "d", Rank: rank, Event: "ready", K: n, N: n, Blocks: 3}, at)
		}
		left--
	}
	got, readyAt := b.read("t")
	want := &Transfer{Ready: true, Blocks: 12, Bytes: 28, Counted: map[string]string{"0/0/0": "2/2", "0/0/1": "2/2", "0/1/0": "1/1", "0/1/1": "1/1"}}
	if diff := cmp.Diff(got, want); diff != "" || !readyAt.Equal(at) {
		t.Errorf("ready at %v; got (-got +want):\n%s", readyAt, diff)
	}
}

// TestFault41ReportsOfOthersTransfers: an engine's stream is believed about that engine's part in its own transfers. What it
// says of others' is not entered, and is counted.
func TestFault41ReportsOfOthersTransfers(t *testing.T) {
	at := time.Unix(100, 0)
	for name, c := range map[string]struct {
		from  string
		event control.Event
	}{
		"ready, by a stranger":          {"x", control.Event{Engine: "x", Event: "ready", Blocks: 3}},
		"ready, in decode's name":       {"x", control.Event{Engine: "d", Event: "ready", Blocks: 3}},
		"ready, by prefill":             {"p", control.Event{Engine: "p", Event: "ready", Blocks: 3}},
		"ready, by prefill as decode":   {"p", control.Event{Engine: "d", Event: "ready", Blocks: 3}},
		"ready, by nobody":              {"d", control.Event{Event: "ready", Blocks: 3}},
		"failed, by a stranger":         {"x", control.Event{Engine: "x", Event: "failed", Reason: "no"}},
		"failed, in prefill's name":     {"x", control.Event{Engine: "p", Event: "failed", Reason: "no"}},
		"sent, by decode":               {"d", control.Event{Engine: "d", Event: "sent", Bytes: 1 << 40}},
		"sent, by a stranger":           {"x", control.Event{Engine: "p", Event: "sent", Bytes: 1 << 40}},
		"failed, by prefill":            {"p", control.Event{Engine: "p", Event: "failed", Reason: "no"}},
		"ready, by another of its name": {"D", control.Event{Engine: "d", Event: "ready", K: 1, N: 1}},
		"an event that is none":         {"d", control.Event{Engine: "d", Event: "counted", K: 1, N: 1}},
	} {
		b := newTransfers(4)
		b.Open("t", "p", "d", metadata.Rank{DP: 1, PP: 1, TP: 1})
		b.Open("u", "x", "d", metadata.Rank{DP: 1, PP: 1, TP: 1}) // the stranger has transfers of its own
		c.event.Transfer = "t"
		b.Note(c.from, c.event, at)
		if got, _ := b.read("t"); cmp.Diff(got, &Transfer{}) != "" {
			t.Errorf("%s: got %+v; want an empty got", name, got)
		}
		if got := b.Rejected(); got != 1 {
			t.Errorf("%s: %d reports counted; want 1", name, got)
		}
		for _, m := range b.Totals() {
			if m.Blocks != 0 || m.Bytes != 0 {
				t.Errorf("%s: moved %+v; want nothing", name, m)
			}
		}
	}
}

// TestFault41BooksOfAHostileEngine: an engine fills no ledger with ranks that it does not have and numbers that cannot be, and
// whatever it says of its own transfers, what is kept stays small.
func TestFault41BooksOfAHostileEngine(t *testing.T) {
	b := newTransfers(4)
	size := metadata.Rank{DP: 1, PP: 1, TP: 2}
	b.Open("t", "p", "d", size)
	at := time.Unix(100, 0)
	said := uint64(0)
	say := func(engine string, e control.Event) {
		e.Transfer, e.Engine = "t", engine
		b.Note(engine, e, at)
		said++
	}
	for i := range 2000 {
		rank := metadata.Rank{TP: i + 2}
		say("d", control.Event{Rank: rank, Event: "failed", K: 1, N: 1})
		say("d", control.Event{Rank: rank, Event: "ready", Blocks: 1})
	}
	for _, rank := range []metadata.Rank{{DP: 1}, {PP: 1}, {TP: -1}, {DP: -1}, {PP: -1}} {
		say("d", control.Event{Rank: rank, Event: "ready", Blocks: 1})
	}
	say("d", control.Event{Event: "ready", Blocks: -1})
	say("d", control.Event{Event: "ready", Blocks: 1 << 40})
	say("d", control.Event{Event: "ready", K: -1, N: 1})
	say("d", control.Event{Event: "failed", K: 1, N: -1})
	say("p", control.Event{Event: "sent", Bytes: 1 << 63})
	say("p", control.Event{Event: "sent", Bytes: 1<<64 - 1})
	if got, _ := b.read("t"); cmp.Diff(got, &Transfer{}) != "" || b.Rejected() != said {
		t.Errorf("entered %+v, %d of %d counted; want nothing entered", got, b.Rejected(), said)
	}
	for range 100 {
		b.Note("p", control.Event{Transfer: "t", Engine: "p", Event: "sent", Bytes: maxBytes / 2}, at)
	}
	if got, _ := b.read("t"); got.Bytes != maxBytes {
		t.Errorf("%d bytes; want no more than %d", got.Bytes, int64(maxBytes))
	}
	b.Note("d", control.Event{Transfer: "t", Engine: "d", Event: "failed", Reason: strings.Repeat("x", 1<<20)}, at)
	if got, _ := b.read("t"); len(got.Failed) != maxReason {
		t.Errorf("a reason of %d bytes is kept", len(got.Failed))
	}

	b.Open("u", "p", "d", metadata.Rank{}) // of an engine whose size is not known
	for i := range 2000 {
		b.Note("d", control.Event{Transfer: "u", Engine: "d", Rank: metadata.Rank{PP: i % 50, TP: i / 50}, Event: "failed", K: 1, N: 2}, at)
		b.Note("d", control.Event{Transfer: "u", Engine: "d", Rank: metadata.Rank{PP: i % 50, TP: i / 50}, Event: "ready", K: 1, N: 1}, at)
	}
	if got, _ := b.read("u"); len(got.Counted) > metadata.MaxRanks {
		t.Errorf("%d ranks of one transfer are kept", len(got.Counted))
	}
	for i := range 100 {
		b.Open(fmt.Sprint(i%7), "p", "d", size)
		b.Open(fmt.Sprint(i%7), "p", "d", size)
	}
	if len(b.byID) > 4 || len(b.order) > 4 {
		t.Errorf("%d gots, %d in order; want at most 4", len(b.byID), len(b.order))
	}
}
