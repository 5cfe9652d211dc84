package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/internal/benchtest"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
	"pdrouter/bench/simulate"
)

// replayEngines runs a pair of modelled engines in this process, faster than real, and returns their addresses.
func replayEngines(t *testing.T, speed float64) []string {
	t.Helper()
	spec := sim.Spec{Costs: replayCosts, Connector: "vllm-nixl-pull", Prefill: 1, Decode: 1, Budget: 512, Speed: speed}
	return strings.Fields(benchtest.Listen(t, func(ctx context.Context, out io.Writer) error { return sim.Serve(ctx, spec, out) }))
}

// readFleet asks one of the engines what all of them have done.
func readFleet(t *testing.T, address string) (r sim.FleetReading) {
	t.Helper()
	if err := harness.GetJSON(t.Context(), "http://"+address+sim.FleetPath, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// evenCosts are for schedules that are computed by hand: a step takes 10 ms, and 1 ms for each token of it; a transfer 5 ms and
// 1 ms for each token.
func evenCosts(blocks int) sim.Costs {
	return sim.Costs{Step: 10000, Prefill: 1000, Decode: 1000, KVBytes: 1000, Link: 0.001, LinkSetup: 5000, Blocks: blocks}
}

// TestReplayThroughBaseline replays a little trace through the baseline proxy: all answers are whole, what is found of prompts is what can
// be, and times are the engines'.
func TestReplayThroughBaseline(t *testing.T) {
	const speed = 100
	engines := replayEngines(t, speed)
	at := benchtest.Listen(t, func(ctx context.Context, out io.Writer) error {
		return fake.ServeBaseline(ctx, "pull", engines[0], engines[1], out)
	})
	trace := []load.Request{{At: 0, Input: 600, Output: 5, Blocks: []int{0, 1}}, {At: 5 * time.Second, Input: 700, Output: 5, Blocks: []int{0, 1}}, {At: 6 * time.Second, Input: 600, Output: 1, Blocks: []int{0, 2}}}
	outcomes, err := load.OpenLoop(t.Context(), at, load.WordTokens().Arrivals(load.Quicker(trace, speed), fake.Model))
	if err != nil {
		t.Fatal(err)
	}
	harness.Scaled(outcomes, speed)
	sum := load.Summarise(outcomes, load.SLO{})
	if err := sum.Verdict(false); err != nil {
		t.Fatal(err)
	}
	r := readFleet(t, engines[0])
	if sum.Whole != 3 || r.Prompts != 1900 || r.Found != r.Possible || r.Found < 2*512 {
		t.Errorf("%d whole answers, %+v; want 3, and all found that can be", sum.Whole, r)
	}
	for i, o := range outcomes {
		if o.At != trace[i].At || o.Ttft() < 20*time.Millisecond { // 600 tokens take 10 ms, admission and steps the rest: never less
			t.Errorf("request %d at %v had its first token after %v", i, o.At, o.Ttft())
		}
	}
	if got, want := replayCounts(harness.Target{Of: "baseline proxy", Legs: 2}, outcomes), (fake.Counts{Prefill: 3, Decode: 3}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
	if got, want := replayCounts(harness.Target{Of: report.Us, Legs: 2}, outcomes), (fake.Counts{Prefill: 2, Decode: 2, Other: 1}); got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
}

// TestReplayRows makes rows of made-up figures: for each fleet and rate policies and peers beside each other, and the engines alone.
func TestReplayRows(t *testing.T) {
	cells := replayCells()
	row := report.Row{What: replayMetrics[0].what, Unit: "1/s"}
	alone := map[string][]float64{}
	for i, c := range cells {
		f := report.Figure{Of: c.name(), Rounds: []float64{float64(100 + i)}, Peer: c.peer != nil}
		if i == 0 {
			row.Ours = f
		} else {
			row.Beside = append(row.Beside, f)
		}
		alone[c.name()] = []float64{float64(200 + i)}
	}
	var got []string
	for _, r := range replayRows(cells, []report.Row{row}, alone) {
		line := fmt.Sprintf("%s: %g", r.Name, r.Ours.Median)
		for _, f := range r.Beside {
			line += fmt.Sprintf(", %s %g", f.Of, f.Median)
		}
		for _, g := range r.Goals {
			line += ": " + g.Met
		}
		got = append(got, line)
	}
	want := []string{
		"2P2D pull, least_load, 1.5/s: 100, vllm-router, round robin 101, smg, round robin 102, engines alone 200: no",
		"3P1D, least_load, 0.75/s: 103, engines alone 203",
		"3P1D, least_load, 1.5/s: 104, vllm-router, round robin 107, engines alone 204: no",
		"3P1D, prefix, 1.5/s: 106, least_load 104, vllm-router, round robin 107, engines alone 206: no: yes",
		"3P1D, least_load, 2.25/s: 105, engines alone 205",
		"2P2D, least_load, 0.75/s: 108, engines alone 208",
		"2P2D, least_load, 1.5/s: 109, vllm-router, round robin 112, engines alone 209: no",
		"2P2D, prefix, 1.5/s: 111, least_load 109, vllm-router, round robin 112, engines alone 211: no: yes",
		"2P2D, least_load, 2.25/s: 110, engines alone 210",
		"1P3D, least_load, 0.75/s: 113, engines alone 213",
		"1P3D, least_load, 1.5/s: 114, vllm-router, round robin 117, engines alone 214: no",
		"1P3D, prefix, 1.5/s: 116, least_load 114, vllm-router, round robin 117, engines alone 216: no",
		"1P3D, least_load, 2.25/s: 115, engines alone 215",
		"aggregated, least_load, 0.75/s: 118, engines alone 218",
		"aggregated, least_load, 1.5/s: 119, engines alone 219",
		"aggregated, prefix, 1.5/s: 121, least_load 119, engines alone 221: yes",
		"aggregated, least_load, 2.25/s: 120, engines alone 220",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestVirtualReplay holds replays in the engines' own time against schedules computed by hand: a step takes 10 ms and 1 ms for each of
// its tokens, a transfer 5 ms and 1 ms for each.
func TestVirtualReplay(t *testing.T) {
	trace := []load.Request{{At: 0, Input: 20, Output: 3, Blocks: []int{1}}, {At: 5 * time.Millisecond, Input: 20, Output: 2, Blocks: []int{2}}, {At: 200 * time.Millisecond, Input: 36, Output: 1, Blocks: []int{1}}}
	for _, tt := range []struct {
		fleet replayFleet
		want  string
	}{
		// decode begins with the second behind the step of the first that its transfer ends in; the third, of one token, is decode's alone, which has 16 of it
		{replayFleet{"1P1D", 1, 1}, "[66ms 77ms 88ms] [99ms 110ms] [230ms]"},
		{replayFleet{"2P1D", 2, 1}, "[66ms 77ms 88ms] [99ms 110ms] [230ms]"},
		{replayFleet{"aggregated", 0, 2}, "[30ms 41ms 52ms] [35ms 46ms] [230ms]"},
		{replayFleet{"aggregated", 0, 1}, "[30ms 61ms 73ms] [61ms 73ms] [230ms]"},
	} {
		p, err := policyOf("least_load")
		if err != nil {
			t.Fatal(err)
		}
		got := make([]string, len(trace))
		ended := func(request int, o *load.Outcome) { got[request] = fmt.Sprint(o.Chunks) }
		v, err := simulate.Replay(simulate.Setup{Layout: simulate.Layout{Prefill: tt.fleet.prefill, Decode: tt.fleet.decode}, Costs: evenCosts(100), Budget: 1000, Policy: p, SLO: replaySLO, Ended: ended}, trace)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tt.want, strings.Join(got, " ")); d != "" {
			t.Errorf("%+v: %s", tt.fleet, d)
		}
		if v.InFlight != 0 {
			t.Errorf("%+v: %d legs in flight at the end", tt.fleet, v.InFlight)
		}
		if v.Whole != 3 || v.Verdict(false) != nil {
			t.Errorf("%+v: %+v", tt.fleet, v.Summary)
		}
	}
}

// TestReplayFound words who is ahead of made-up rounds.
func TestReplayFound(t *testing.T) {
	point := func(rate float64, rounds ...[]float64) *sweepPoint {
		p := &sweepPoint{mix: replayMixes[0], rate: rate, asked: 2, prompts: 20, answers: 7}
		for _, good := range rounds { // of a fleet
			var figures [][]float64
			for _, g := range slices.Repeat(good, 3) {
				figures = append(figures, []float64{g})
			}
			p.rounds = append(p.rounds, figures)
		}
		return p
	}
	low := []float64{1, 1}
	got := found([]*sweepPoint{
		point(1, []float64{60, 80}, low, low, []float64{70, 70}),
		point(2, low, []float64{50, 60}, low, []float64{40, 55}),
		point(3, low, low, []float64{30, 40}, []float64{50, 41}),
		point(4, low, []float64{24, 20}, low, []float64{20, 23}),
	})
	want := "**as recorded** (prompts of 10 tokens, answers of 3 in the mean): 2P2D is ahead at 2/s, aggregated at 3/s. 70 % (3P1D) and 70 % at 1/s, 55 % (2P2D) and 48 % at 2/s, 35 % (1P3D) and 46 % at 3/s, 22 % (2P2D) and 22 % at 4/s."
	if len(got) != 2 || got[1] != want {
		t.Errorf("got %q; want %q", got, want)
	}
}

// TestSurely: how uneven rounds are for the one and for the other before it is not chance.
func TestSurely(t *testing.T) {
	for _, tt := range []struct {
		more, less int
		want       bool
	}{{0, 0, false}, {5, 0, false}, {6, 0, true}, {0, 6, true}, {14, 6, false}, {15, 5, true}, {5, 15, true}, {10, 10, false}} {
		if got := surely(tt.more, tt.less); got != tt.want {
			t.Errorf("%d and %d: got %t", tt.more, tt.less, got)
		}
	}
}

// TestNoTailOfFew: a point with fewer than 100 requests a round has no 99th percentile of requests; of tokens it has.
func TestNoTailOfFew(t *testing.T) {
	of := func(requests int) (whats []string) {
		p := &sweepPoint{mix: replayMixes[0], rate: 1, asked: 2 * requests}
		for _, f := range replayFleets {
			p.runs = append(p.runs, sweepRun{f, replayPolicies[0]})
			p.rounds = append(p.rounds, slices.Repeat([][]float64{{1, 2, 3, 4, 5}}, 2))
		}
		for _, r := range p.rows() {
			whats = append(whats, r.What)
		}
		return whats
	}
	all := []string{"good requests, as recorded", "goodput, as recorded", "TTFT p50, as recorded", "TTFT p99, as recorded", "ITL p99, as recorded"}
	if d := cmp.Diff(all, of(100)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(slices.Delete(slices.Clone(all), 3, 4), of(99)); d != "" {
		t.Error(d)
	}
}

// TestVirtualReplayByPrefix has conversations of two go on by turns: by prefix each stays with the engine that has it, and all is found that
// can be; in turn some do not.
func TestVirtualReplayByPrefix(t *testing.T) {
	trace := []load.Request{
		{At: 0, Input: 1024, Output: 3, Blocks: []int{1, 2}}, {At: 0, Input: 1024, Output: 3, Blocks: []int{3, 4}}, {At: 0, Input: 1024, Output: 3, Blocks: []int{5, 6}},
		{At: 20 * time.Second, Input: 1536, Output: 3, Blocks: []int{3, 4, 7}}, {At: 20 * time.Second, Input: 1536, Output: 3, Blocks: []int{1, 2, 8}}, {At: 20 * time.Second, Input: 1536, Output: 3, Blocks: []int{5, 6, 9}},
		{At: 40 * time.Second, Input: 2048, Output: 3, Blocks: []int{10, 11, 12, 13}}, {At: 45 * time.Second, Input: 2048, Output: 3, Blocks: []int{10, 11, 12, 14}},
	}
	for _, f := range []replayFleet{{"2P1D", 2, 1}, {"aggregated", 0, 2}} {
		_, got, err := virtually(f, evenCosts(10_000), 8192, ByPrefix, trace)
		if want := 3*1024 + 1536; err != nil || got.Possible != want || got.Found != got.Possible {
			t.Errorf("%s: %d of %d tokens found, %v; want all %d", f.name, got.Found, got.Possible, err, want)
		}
		if _, turns, err := virtually(f, evenCosts(10_000), 8192, "round_robin", trace); err != nil || turns.Found >= got.Found {
			t.Errorf("%s, in turn: %d tokens found, %v; want fewer than %d", f.name, turns.Found, err, got.Found)
		}
	}
}

// TestPoliciesFound words policies beside round robin of made-up rounds.
func TestPoliciesFound(t *testing.T) {
	p := &sweepPoint{mix: replayMixes[0], rate: 1.5}
	for _, policy := range replayPolicies {
		p.runs = append(p.runs, sweepRun{replayFleets[0], policy})
		good := map[string]float64{"least_load": 70, "power_of_two": 50, "round_robin": 60, "prefix": 80}[policy]
		p.rounds = append(p.rounds, slices.Repeat([][]float64{{good}}, 6))
	}
	p.runs, p.rounds = slices.Repeat(p.runs, 2), slices.Repeat(p.rounds, 2) // of two fleets
	line := "**3P1D**: least_load 70 % (ahead: more in 6, less in 0), power_of_two 50 % (behind: more in 0, less in 6), prefix 80 % (ahead: more in 6, less in 0), round_robin 60 %."
	want := []string{"Policies beside round robin at 1.5/s, as recorded, by the part of the requests that are good, with 6 choices of conversations:", line, line}
	if d := cmp.Diff(want, policiesFound([]*sweepPoint{p})); d != "" {
		t.Error(d)
	}
}

// TestReplayTrace: that of the file, or else the built-in workload, at the asked-for speed.
func TestReplayTrace(t *testing.T) {
	const lines = `{"timestamp": 3001, "input_length": 513, "output_length": 7, "hash_ids": [0, 4]}
{"timestamp":3001,"input_length":512,"output_length":1,"hash_ids":[0]}
{"timestamp": 5001, "input_length": 1, "output_length": 1, "hash_ids": [9]}`
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(c harness.Config) ([]load.Request, error) { return replayTrace(&harness.Run{Config: c}) }
	got, err := of(harness.Config{Trace: path, Scale: 2})
	if err != nil || len(got) != 3 || got[1].At != time.Duration(1000*time.Millisecond/2/replayQuick) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := of(harness.Config{Trace: path + ".none", Scale: 1}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if made, err := of(harness.Config{Scale: 1}); err != nil || len(made) == 0 || made[len(made)-1].At <= made[0].At {
		t.Errorf("got %+v, %v", made, err)
	}
}
