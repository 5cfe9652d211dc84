package simulate

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/internal/racetest"
	"pdrouter/policies"
)

var slo = load.SLO{Ttft: 2 * time.Second, Tpot: 50 * time.Millisecond}

func costs(t testing.TB) sim.Costs {
	t.Helper()
	c, err := sim.CostsOf("llama-3.3-70b-4xh100")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCostBesideOthers replays the policy cost beside what else four engines can do: few seeds, at a rate at which aggregated engines are best
// and at one at which nothing does well. `pdrouter simulate` prints all of it.
func TestCostBesideOthers(t *testing.T) {
	cost, err := Cost(4, slo)
	if err != nil {
		t.Fatal(err)
	}
	others, err := Baselines(4)
	if err != nil {
		t.Fatal(err)
	}
	s := Sweep{Trace: load.MadeTrace(4000, 1), Mixes: []Mix{{"recorded", 1, 1, []float64{1.5, 2.5}}}, Systems: append(others, cost), Seeds: 3, Window: time.Minute, Costs: costs(t), SLO: slo}
	calls := 0
	rows, err := s.Run(context.Background(), func(rows, of int) {
		if calls++; rows != calls || of != 2*len(s.Systems) {
			t.Errorf("row %d of %d", rows, of)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, least := range []float64{.98, 1.15} { // of the best of the others
		rate := s.Mixes[0].Rates[i]
		own, _ := best(rows, "recorded", rate, func(r Row) bool { return r.Policy == "cost" })
		other, _ := best(rows, "recorded", rate, func(r Row) bool { return r.Policy != "cost" })
		if own.Attainment < least*other.Attainment {
			t.Errorf("at %g/s: %.3f keep their objective; want %.2f times %.3f of %s %s", rate, own.Attainment, least, other.Attainment, other.Layout, other.Policy)
		}
		if own.ITLP99 > .05 && i == 0 {
			t.Errorf("at %g/s: of a hundred tokens one comes after %.3f s", rate, own.ITLP99)
		}
		if own.Split == 0 || own.Split == 1 {
			t.Errorf("at %g/s: a part of %v was split", rate, own.Split)
		}
	}
	window, loads, err := s.loads(s.Mixes[0], 1.5)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.row(context.Background(), s.Mixes[0], 1.5, window, cost, loads)
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Policy == "cost" })
	if d := cmp.Diff(rows[i], again); d != "" || err != nil {
		t.Errorf("the same again (-first +second): %v %s", err, d)
	}
	if lines := Verdicts(rows); len(lines) != 2 {
		t.Errorf("got %q", lines)
	}
	if table := Table(rows); len(table) != 3 || len(table[0]) != 2+len(s.Systems) {
		t.Errorf("got %q", table)
	}
}

// TestRefusedByPolicy: a policy that refuses a request on a layout is an error that says so.
func TestRefusedByPolicy(t *testing.T) {
	reject, err := policies.New(policies.Config{Default: policies.Choosing{Split: policies.SplitRule{OnNoPrefill: "reject"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Replay(Setup{Layout: Layout{Either: 1}, Costs: costs(t), Budget: 2048, Policy: reject}, []load.Request{{Input: 600, Output: 3, Blocks: []int{1, 2}}})
	want := "bench: simulate: on 1E the policy refuses a prompt of 600 tokens (no_pair); want one that serves every request there"
	if err == nil || err.Error() != want {
		t.Errorf("got %v; want %s", err, want)
	}
}

// TestShortTrace: a trace that is shorter than the window at a rate is replayed to its end, and the row says how long that was.
func TestShortTrace(t *testing.T) {
	cost, err := Cost(4, slo)
	if err != nil {
		t.Fatal(err)
	}
	s := Sweep{Trace: make([]load.Request, 101), Mixes: []Mix{{"recorded", 1, 1, []float64{2}}}, Systems: []System{cost}, Seeds: 1, Window: time.Minute, Costs: costs(t), SLO: slo}
	for i := range s.Trace {
		s.Trace[i] = load.Request{At: time.Duration(i) * time.Second, Input: 1, Output: 1, Blocks: []int{i}}
	}
	if rows, err := s.Run(context.Background(), nil); err != nil || len(rows) != 1 || rows[0].Window < 20 || rows[0].Window > 20.5 || rows[0].Requests != 40 {
		t.Errorf("got %+v, %v; want 40 requests in about 20 s", rows, err)
	}
	s.Trace = s.Trace[:1]
	want := "bench: simulate: 2 requests a second in 0s of the trace, which has 1 requests, are none; want a longer window or trace"
	if rows, err := s.Run(context.Background(), nil); err == nil || err.Error() != want {
		t.Errorf("got %+v, %v; want %s", rows, err, want)
	}
}

// TestPredictions are of the time to first tokens, on engines with little to do and with much.
func TestPredictions(t *testing.T) {
	if racetest.Enabled() {
		t.Skip("the race detector takes minutes for it, and sees the same goroutines in TestCostBesideOthers")
	}
	cost, err := Cost(4, slo)
	if err != nil {
		t.Fatal(err)
	}
	mixes := []Mix{{"recorded", 1, 1, []float64{2, 3}}, {"prompts/4", .25, 1, []float64{7.5, 10, 12.5}}, {"answers*4", 1, 4, []float64{2}}}
	s := Sweep{Trace: load.MadeTrace(8000, 1), Mixes: mixes, Systems: []System{cost}, Seeds: 3, Window: 3 * time.Minute, Costs: costs(t), SLO: slo}
	rows, err := s.Run(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if t.Logf("%s at %g/s: %.3f", r.Mix, r.Rate, r.Error); r.Error == 0 || r.Error > .15 {
			t.Errorf("%s at %g/s: times to the first token differ by %.3f from what was predicted; want at most .15", r.Mix, r.Rate, r.Error)
		}
	}
}

// TestVerdictsBesideNothing: where the others keep no objective, cost is no number of times as good.
func TestVerdictsBesideNothing(t *testing.T) {
	rows := []Row{{Mix: "recorded", Rate: 2, Policy: "cost", Attainment: .025}, {Mix: "recorded", Rate: 2, Layout: "4D", Policy: "aggregated"}}
	want := []string{"recorded at 2/s: cost 2.5%, none of the others any"}
	if d := cmp.Diff(want, Verdicts(rows)); d != "" {
		t.Error(d)
	}
}

// TestMix shortens prompts and lengthens answers; what stays of a prompt has its ids.
func TestMix(t *testing.T) {
	got := Mix{Prompt: .25, Answer: 4}.Of([]load.Request{{At: time.Millisecond, Input: 4100, Output: 7, Blocks: []int{0, 5, 6, 7, 8, 9, 10, 11, 12}}, {At: time.Millisecond, Input: 3, Output: 1, Blocks: []int{0}}})
	want := []load.Request{{At: time.Millisecond, Input: 1025, Output: 28, Blocks: []int{0, 5, 6}}, {At: time.Millisecond, Input: 1, Output: 4, Blocks: []int{0}}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(load.Request{})); d != "" {
		t.Error(d)
	}
}

func TestParseLayout(t *testing.T) {
	for text, want := range map[string]Layout{"2P2D": {2, 2, 0}, "4D": {0, 4, 0}, "4E": {0, 0, 4}, "1P1D2E": {1, 1, 2}, "1P1E": {1, 0, 1}} {
		if got, err := ParseLayout(text); got != want || err != nil || got.String() != text {
			t.Errorf("%s: got %+v (%v), %v", text, got, got, err)
		}
	}
	for _, text := range []string{"", "2P", "D2", "2D2P", "-1D", "99999999999999999999D", "2000E"} {
		if got, err := ParseLayout(text); err == nil {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

// TestEitherRole: an engine of either role hands nothing to itself, and a layout without engines that give answers is refused.
func TestEitherRole(t *testing.T) {
	always, err := Baselines(1)
	if err != nil || len(always) != 1 {
		t.Fatalf("%d baselines for one engine, %v", len(always), err)
	}
	trace := []load.Request{{Input: 600, Output: 3, Blocks: []int{1, 2}}, {At: time.Second, Input: 600, Output: 3, Blocks: []int{1, 2}}}
	for _, tt := range []struct {
		of    Layout
		split int
	}{{Layout{Either: 1}, 0}, {Layout{Either: 2}, 2}, {Layout{Prefill: 1, Either: 1}, 2}} {
		tokens := [2]int{}
		ended := func(request int, o *load.Outcome) { tokens[request] = len(o.Chunks) }
		got, err := Replay(Setup{Layout: tt.of, Costs: costs(t), Budget: 2048, Policy: always[0].Policy, Ended: ended}, trace)
		if err != nil || got.Split != tt.split || got.InFlight != 0 || tokens != [2]int{3, 3} {
			t.Errorf("%v: %+v, %v; want %d split", tt.of, got, err, tt.split)
		}
	}
	if _, err := Replay(Setup{Layout: Layout{Prefill: 1}, Policy: always[0].Policy}, trace); err == nil {
		t.Error("nobody answers, and no error")
	}
}
