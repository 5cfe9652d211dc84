package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAtRateTakesConversationsWhole takes a part of a trace: about as many as asked for, every turn of whoever is taken, the same
// each time, and more of them at a higher rate.
func TestAtRateTakesConversationsWhole(t *testing.T) {
	trace := madeTrace(1500, 3)
	within := 5 * time.Minute
	low, high := atRate(trace, within, .5, 1), atRate(trace, within, 1.5, 1)
	if d := cmp.Diff(low, atRate(trace, within, .5, 1), cmp.AllowUnexported(traced{})); d != "" {
		t.Errorf("the same again: %s", d)
	}
	if len(low) < 150 || len(low) > 200 || len(high) < 450 || len(high) > 500 {
		t.Errorf("%d and %d requests; want a few more than 150 and 450", len(low), len(high))
	}
	turns := func(trace []traced) map[int]int {
		n := map[int]int{}
		for _, t := range trace {
			if len(t.blocks) > 1 {
				n[t.blocks[1]]++
			}
		}
		return n
	}
	all, more := turns(cutTrace(trace, 0, within)), turns(high)
	for id, n := range turns(low) {
		if n != all[id] || n != more[id] {
			t.Errorf("conversation %d has %d turns, %d at the higher rate; want all %d", id, n, more[id], all[id])
		}
	}
	if !slices.IsSortedFunc(high, func(a, b traced) int { return int(a.at - b.at) }) {
		t.Error("they are not in order of time")
	}
}

// TestReplayThroughFloor replays a little trace through the floor: all answers are whole, what is found of prompts is what can
// be, and times are the engines'.
func TestReplayThroughFloor(t *testing.T) {
	const speed = 100
	engines := modelledFleet(t, "vllm-nixl-pull", 1, 1, speed)
	at := listen(t, func(ctx context.Context, out io.Writer) error {
		return ServeFloor(ctx, "pull", engines[0], engines[1], out)
	})
	trace := []traced{{0, 600, 5, []int{0, 1}}, {5 * time.Second, 700, 5, []int{0, 1}}, {6 * time.Second, 600, 1, []int{0, 2}}}
	outcomes, err := openLoop(t.Context(), at, wordTokens().arrivals(quicker(trace, speed), benchModel))
	if err != nil {
		t.Fatal(err)
	}
	scaled(outcomes, speed)
	sum := summarise(outcomes, slo{})
	if err := sum.verdict(false); err != nil {
		t.Fatal(err)
	}
	r := fleetOf(t, engines[0])
	if sum.whole != 3 || r.Prompts != 1900 || r.Found != r.Possible || r.Found < 2*512 {
		t.Errorf("%d whole answers, %+v; want 3, and all found that can be", sum.whole, r)
	}
	for i, o := range outcomes {
		if o.at != trace[i].at || o.ttft() < 20*time.Millisecond { // 600 tokens take 10 ms, admission and steps the rest: never less
			t.Errorf("request %d at %v had its first token after %v", i, o.at, o.ttft())
		}
	}
	if got, want := replayCounts(target{of: "floor", legs: 2}, outcomes), (Counts{Prefill: 3, Decode: 3}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
	if got, want := replayCounts(target{of: us, legs: 2}, outcomes), (Counts{Prefill: 2, Decode: 2, Other: 1}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
}

// TestReplayRows makes rows of made-up figures: fleets beside each other at each rate, policies and peers beside each other for
// each fleet, and the best of all named.
func TestReplayRows(t *testing.T) {
	cells := replayCells()
	row := Row{What: "goodput", Unit: "1/s"}
	for i, c := range cells {
		f := Figure{Of: c.name(), Rounds: []float64{float64(100 + i)}, peer: c.peer != nil}
		if i == 0 {
			row.Ours = f
		} else {
			row.Beside = append(row.Beside, f)
		}
	}
	rows := replayRows(cells, []Row{row})
	var got []string
	for _, r := range rows {
		line := fmt.Sprintf("%s: %g", r.Name, r.Ours.Median)
		for _, f := range r.Beside {
			line += fmt.Sprintf(", %s %g", f.Of, f.Median)
		}
		got = append(got, line)
	}
	want := []string{
		"0.75/s, 3P1D: 100, 2P2D 106, 1P3D 112, aggregated 118",
		"1.5/s, 3P1D: 101, 2P2D 107, 1P3D 113, aggregated 119",
		"3/s, 3P1D: 102, 2P2D 108, 1P3D 114, aggregated 120",
		"3P1D, least_load, 1.5/s: 101, power_of_two 103, round_robin 104, vllm-router, round robin 105",
		"2P2D, least_load, 1.5/s: 107, power_of_two 109, round_robin 110, vllm-router, round robin 111",
		"1P3D, least_load, 1.5/s: 113, power_of_two 115, round_robin 116, vllm-router, round robin 117",
		"aggregated, least_load, 1.5/s: 119, power_of_two 121, round_robin 122",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if notes := strings.Join(crossover(cells, []Row{row}), "\n"); !strings.Contains(notes, "3/s aggregated (120)") {
		t.Error(notes)
	}
}
