package simulate

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// conversing are conversations on four engines that come and go as `pdrouter simulate conversations` has them.
func conversing(t *testing.T, uses ...string) Conversations {
	t.Helper()
	cost, err := Cost(4, slo)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := ParseChanges([]string{"add@40s", "drain@40s", "add@70s", "drain@70s", "add@100s", "drain@100s", "lose@130s", "add@140s"})
	if err != nil {
		t.Fatal(err)
	}
	return Conversations{Setup: Setup{Layout: cost.Layout, Policy: cost.Policy, Costs: costs(t), Budget: 2048, Seed: 1, SLO: slo}, Rate: 1, Window: 3 * time.Minute,
		Context: 37_000, New: 2000, Answer: 200, Turns: 6, Pause: 20 * time.Second, Changes: changes, Uses: uses}
}

// TestMovesBesideNone: with moves, turns whose engines have drained get their first token in less than 0.7 of the time; and turns of all kinds in no more
// than 1.02 of it. The latter is shown up to half of what the engines can do: of more, seeds differ by more than that, and docs/operations.md has more of them.
func TestMovesBesideNone(t *testing.T) {
	s := ConversationSweep{Conversations: conversing(t, "drain", "route"), Rates: []float64{.5, 1, 1.5, 3}, Seeds: 8}
	rates := 0
	rows, err := s.Run(context.Background(), func(n, of int) { rates = n })
	if err != nil || rates != len(s.Rates) {
		t.Fatal(rates, err)
	}
	for _, r := range rows {
		t.Logf("%g/s %s: %+v, %+v, %.3f; %v", r.Rate, r.Turns, r.Without, r.With, r.Ratio, r.Moves)
		switch {
		case r.Turns == "all" && (r.Without.Turns != r.With.Turns || r.Moves["drain moved"] == 0 || r.Ratio > 1.02 && r.Rate < 2):
			t.Errorf("%g/s: %.3f of the time of %d turns for %d; moves %v", r.Rate, r.Ratio, r.Without.Turns, r.With.Turns, r.Moves)
		case r.Turns == "drained" && (r.Ratio > .7 || r.Without.Turns < 5 || r.With.Turns < 5):
			t.Errorf("%g/s: %.3f of the time after drains, of %d turns for %d", r.Rate, r.Ratio, r.Without.Turns, r.With.Turns)
		}
	}
	if lines := MoveLines(rows); len(lines) != len(s.Rates) {
		t.Errorf("%q", lines)
	}
	if table := ConversationTable(rows); len(table) != 1+len(rows) {
		t.Errorf("%q", table)
	}
}

// TestConversationsRepeat: the same conversations come to the same, to the nanosecond, for whatever KV is moved.
func TestConversationsRepeat(t *testing.T) {
	s := conversing(t, "drain", "route", "warm", "replicate")
	s.Rate = 2.5
	first, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Run()
	if d := cmp.Diff(first, again); d != "" || err != nil {
		t.Errorf("%v (-first +second): %s", err, d)
	}
	if first.Moves["warm moved"] == 0 || first.Again == 0 {
		t.Errorf("%v, %d turns again", first.Moves, first.Again)
	}
}

// TestEnginesLeft: a drain that leaves no engine for requests is an error that says so.
func TestEnginesLeft(t *testing.T) {
	s := conversing(t)
	s.Changes = []Change{{time.Second, Drain}, {2 * time.Second, Lose}, {3 * time.Second, Drain}, {4 * time.Second, Drain}, {5 * time.Second, Drain}}
	if _, err := s.Run(); err == nil {
		t.Error("want an error")
	} else {
		t.Log(err)
	}
}

func TestParseChanges(t *testing.T) {
	got, err := ParseChanges([]string{"add@40s", "lose@1m"})
	if d := cmp.Diff([]Change{{40 * time.Second, Add}, {time.Minute, Lose}}, got); d != "" || err != nil {
		t.Error(err, d)
	}
	for _, bad := range []string{"", "add", "add@", "add@-1s", "kill@3s", "drain@x"} {
		if got, err := ParseChanges([]string{bad}); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
