package bench

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// always is a contender whose rounds give the same figure.
func always(of string, figure float64) contender {
	return contender{of: of, round: func(context.Context, time.Duration) (sample, error) {
		return sample{figures: []float64{figure}, done: 1}, nil
	}}
}

func figures(t *testing.T, c contest, cfg Config) []Row {
	t.Helper()
	rows, err := c.measure(t.Context(), cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestContest: each contender has its rounds, none of them the one that warms up, and a ratio of pdrouter's to its own.
func TestContest(t *testing.T) {
	rounds := 0
	counted := contender{of: us, round: func(context.Context, time.Duration) (sample, error) {
		rounds++
		return sample{figures: []float64{float64(rounds), 7}, done: 1}, nil
	}}
	other := contender{of: "floor", round: func(context.Context, time.Duration) (sample, error) {
		return sample{figures: []float64{2, 14}, done: 1}, nil
	}}
	rows := figures(t, contest{name: "x", metrics: []metric{{what: "a"}, {what: "b"}}, contenders: []contender{counted, other}}, Config{Rounds: 3})
	if d := cmp.Diff([]float64{2, 3, 4}, rows[0].Ours.Rounds); d != "" {
		t.Error(d)
	}
	if r := rows[1].Beside[0].Ratio; r == nil || r.Median != 0.5 || rows[0].Done != 6 {
		t.Errorf("got %+v; want a ratio of 0.5 and 6 done", rows)
	}
}

// TestContestRepeats: a disturbed round is measured again, and so often only.
func TestContestRepeats(t *testing.T) {
	busy := 3
	c := contest{name: "x", metrics: []metric{{}}, contenders: []contender{{of: us, round: func(context.Context, time.Duration) (sample, error) {
		if busy--; busy >= 0 {
			return sample{disturbance: disturbance{others: 0.5}, figures: []float64{99}}, nil
		}
		return sample{figures: []float64{1}}, nil
	}}}}
	rows := figures(t, c, Config{Rounds: 2, Others: 0.1, Refuse: 5})
	if d := cmp.Diff([]float64{1, 1}, rows[0].Ours.Rounds); d != "" || rows[0].Repeated != 2 { // the first was the warm-up
		t.Errorf("%s; repeated %d, want 2", d, rows[0].Repeated)
	}
	busy = 100
	if _, err := c.measure(t.Context(), Config{Rounds: 2, Others: 0.1, Refuse: 5}, io.Discard); err == nil || !strings.Contains(err.Error(), "too busy") {
		t.Errorf("got %v; want too busy", err)
	}
}

// TestContestPeerFails: a peer that fails has no figure and a reason; pdrouter's failure ends the run.
func TestContestPeerFails(t *testing.T) {
	bad := errors.New("an answer is cut\nand more")
	left := 2
	fails := contender{of: "peer", peer: true, round: func(context.Context, time.Duration) (sample, error) {
		if left--; left < 0 {
			return sample{}, bad
		}
		return sample{figures: []float64{1}}, nil
	}}
	rows := figures(t, contest{metrics: []metric{{goals: []Goal{{Beside: bestPeer, Times: 1}}}}, contenders: []contender{always(us, 1), fails}}, Config{Rounds: 3})
	if f := rows[0].Beside[0]; f.Cannot != "failed: an answer is cut" || f.Rounds != nil || rows[0].Goals[0].Met != "" {
		t.Errorf("got %+v; want no figure and the reason", rows[0])
	}
	left, fails.peer = 0, false
	if _, err := (contest{metrics: []metric{{}}, contenders: []contender{always(us, 1), fails}}).measure(t.Context(), Config{Rounds: 1}, io.Discard); !errors.Is(err, bad) {
		t.Errorf("got %v; want the failure", err)
	}
}

// TestContestOnly: a contender with one metric stands in that row alone.
func TestContestOnly(t *testing.T) {
	ceiling := contender{of: "ceiling", only: "b", round: func(context.Context, time.Duration) (sample, error) {
		return sample{figures: []float64{0, 3}}, nil
	}}
	both := contender{of: us, round: func(context.Context, time.Duration) (sample, error) { return sample{figures: []float64{1, 6}}, nil }}
	rows := figures(t, contest{metrics: []metric{{what: "a"}, {what: "b"}}, contenders: []contender{both, ceiling}}, Config{Rounds: 1})
	if len(rows[0].Beside) != 0 || len(rows[1].Beside) != 1 || rows[1].Beside[0].Ratio.Median != 2 {
		t.Errorf("got %+v; want the ceiling in the second row alone", rows)
	}
}

func TestChoose(t *testing.T) {
	for asked, want := range map[string]string{
		"":                      "overhead/cpu-1k", // and all others
		"overhead":              "overhead/cpu-1k overhead/cpu-16k overhead/cpu-220k overhead/latency overhead/syscalls",
		"auth overhead/cpu-16k": "overhead/cpu-16k auth",
	} {
		got, err := Choose(strings.Fields(asked))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range got {
			names = append(names, s.Name)
		}
		if joined := strings.Join(names, " "); joined != want && (asked != "" || !strings.HasPrefix(joined, want+" ")) {
			t.Errorf("%q: got %q; want %q", asked, joined, want)
		}
	}
	if _, err := Choose([]string{"auth", "over"}); err == nil || !strings.Contains(err.Error(), `"over" is no suite`) {
		t.Errorf("got %v; want a refusal", err)
	}
}
