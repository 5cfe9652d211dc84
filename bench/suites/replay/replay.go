package replay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
	"pdrouter/bench/simulate"
	"pdrouter/policies"
)

// Suite replays a trace of conversations on fleets of modelled engines.
func Suite() harness.Suite {
	return harness.Suite{
		Name:  "replay/mooncake",
		Brief: "conversations on four modelled engines: split or aggregated, and by policy",
		Run:   func(ctx context.Context, r *harness.Run) error { return replay(ctx, r) },
	}
}

// What is replayed.
const (
	replayCosts  = "llama-3.3-70b-4xh100"
	replaySpeed  = 12               // how much faster than the clock the engines' time runs
	replayWindow = 70 * time.Second // of the engines' time, in which requests come
	replayQuick  = 10               // how much faster than recorded the trace runs
	replayMiddle = 1.5              // requests a second, at which policies and peers are compared
	replaySeed   = 1
)

// replayRates are requests a second: from engines with little to do to more than they can do.
var replayRates = []float64{.75, replayMiddle, 2.25}

// replayFleet is four engines.
type replayFleet struct {
	name            string
	prefill, decode int
}

// policyOf is one that chooses engines of either role by name.
func policyOf(name string) (*policies.Policy, error) {
	by := policies.Role{Policy: name}
	return policies.New(policies.Config{Default: policies.Choosing{Prefill: by, Decode: by}})
}

// virtually replays a trace on a fleet in its own time.
func virtually(f replayFleet, c sim.Costs, budget int, policy string, trace []load.Request) (load.Summary, sim.FleetReading, error) {
	p, err := policyOf(policy)
	if err != nil {
		return load.Summary{}, sim.FleetReading{}, fmt.Errorf("bench: replay: %w", err)
	}
	got, err := simulate.Replay(simulate.Setup{Layout: simulate.Layout{Prefill: f.prefill, Decode: f.decode}, Costs: c, Budget: budget, Policy: p, Seed: replaySeed, SLO: replaySLO}, trace)
	return got.Summary, got.Engines, err
}

// replaySLO is what a good request keeps.
var replaySLO = load.SLO{Ttft: 2 * time.Second, Tpot: 50 * time.Millisecond}

// readers are the engines that compute prompts.
func (f replayFleet) readers() int {
	if f.prefill == 0 {
		return f.decode
	}
	return f.prefill
}

var replayFleets = []replayFleet{{"3P1D", 3, 1}, {"2P2D", 2, 2}, {"1P3D", 1, 3}, {"aggregated", 0, 4}}

// The policies that are compared. The first is pdrouter's default.
var replayPolicies = []string{"least_load", "power_of_two", "round_robin", ByPrefix}

// ByPrefix is the policy that looks at what engines have of a prompt: it is to find what can be found, and serve no fewer well.
const ByPrefix = "prefix"

// replayCell is what one replay measures.
type replayCell struct {
	fleet  replayFleet
	pull   bool   // else push
	policy string // of pdrouter; "" where a peer routes
	peer   *harness.Target
	rate   float64
}

func (c replayCell) name() string {
	if c.peer != nil {
		return fmt.Sprintf("%s %s %g/s", c.engines(), c.peer.Of, c.rate)
	}
	return fmt.Sprintf("%s %s %g/s", c.engines(), c.policy, c.rate)
}

// engines says which they are, and how they hand over if not by push.
func (c replayCell) engines() string {
	if c.pull {
		return c.fleet.name + " pull"
	}
	return c.fleet.name
}

func (c replayCell) connector() string {
	switch {
	case c.fleet.prefill == 0:
		return "none"
	case c.pull:
		return "vllm-nixl-pull"
	}
	return "vllm-nixl-push"
}

// replayCells are all that is measured on the clock: each fleet at each rate with the default policy, and at the middle one with
// prefix, and with peers that speak the same connector; one fleet with pull as well, which more of them speak. All policies are compared
// by the engines alone, where twenty choices of conversations take less than one does here.
func replayCells() []replayCell {
	cells := []replayCell{{fleet: replayFleets[1], pull: true, policy: replayPolicies[0], rate: replayMiddle}}
	for _, x := range harness.PeerTargets() {
		if x.Of != "sglang-router" {
			cells = append(cells, replayCell{fleet: replayFleets[1], pull: true, peer: &x, rate: replayMiddle})
		}
	}
	for _, f := range replayFleets {
		for _, rate := range replayRates {
			cells = append(cells, replayCell{fleet: f, policy: replayPolicies[0], rate: rate})
		}
		cells = append(cells, replayCell{fleet: f, policy: ByPrefix, rate: replayMiddle})
		for _, x := range harness.PeerTargets() {
			if x.Of == "vllm-router" && f.prefill > 0 {
				cells = append(cells, replayCell{fleet: f, peer: &x, rate: replayMiddle})
			}
		}
	}
	return cells
}

// replayMetric is a figure of a replay.
type replayMetric struct {
	what, unit string
	of         func(load.Summary, sim.FleetReading) float64
	tail       bool // of requests: there is none of few
}

var replayMetrics = []replayMetric{
	{"goodput", "1/s", func(s load.Summary, _ sim.FleetReading) float64 { return s.Goodput() }, false},
	{"good requests", "%", func(s load.Summary, _ sim.FleetReading) float64 { return 100 * float64(s.Good) / float64(s.Asked) }, false},
	{"TTFT p50", "ms", func(s load.Summary, _ sim.FleetReading) float64 { return report.Millis(s.Ttft.P50) }, false},
	{"TTFT p99", "ms", func(s load.Summary, _ sim.FleetReading) float64 { return report.Millis(s.Ttft.P99) }, true},
	{"ITL p50", "ms", func(s load.Summary, _ sim.FleetReading) float64 { return report.Millis(s.Itl.P50) }, false},
	{"ITL p99", "ms", func(s load.Summary, _ sim.FleetReading) float64 { return report.Millis(s.Itl.P99) }, false},
	{engineITL, "ms", func(_ load.Summary, f sim.FleetReading) float64 { return report.Millis(f.ITL99) }, false},
	{"TPOT p99", "ms", func(s load.Summary, _ sim.FleetReading) float64 { return report.Millis(s.Tpot.P99) }, true},
	{hitsMetric, "% of possible", func(_ load.Summary, f sim.FleetReading) float64 { return 100 * float64(f.Found) / float64(f.Possible) }, false},
	{lateMetric, "ms of the clock", func(s load.Summary, f sim.FleetReading) float64 { return report.Millis(late99(s, f)) }, false},
}

// hitsMetric is what engines found of prompts.
const hitsMetric = "prefix hits"

// Figures that only a replay on the clock has.
const (
	engineITL  = "ITL p99 in the engines"
	lateMetric = "engines or client late, p99"
)

// replayMetricOf is the figure with a name.
func replayMetricOf(what string) replayMetric {
	return replayMetrics[slices.IndexFunc(replayMetrics, func(m replayMetric) bool { return m.what == what })]
}

// late99 is by how much the engines told their tokens late, or the client sent its requests, whichever is more.
func late99(s load.Summary, f sim.FleetReading) time.Duration {
	return max(f.Late99, s.Late.P99/replaySpeed)
}

// replay has the engines alone replay all mixes, then measures all cells in turns, and adds their rows.
func replay(ctx context.Context, r *harness.Run) error {
	trace, err := replayTrace(r)
	if err != nil {
		return err
	}
	r.Report.Axis = "requests a second"
	if err := sweep(ctx, r, trace); err != nil {
		return err
	}
	loads, alone := map[float64][]load.Arrival{}, map[float64][]load.Request{}
	for _, rate := range replayRates {
		taken := load.AtRate(trace, replayWindow, rate, replaySeed)
		if len(taken) < int(rate*replayWindow.Seconds()) {
			return fmt.Errorf("bench: replay: the trace has %d requests in %v of its time; want at least %g a second of a %d-th of that", len(taken), time.Duration(float64(replayWindow)*replayQuick*r.Scale), rate, replayQuick)
		}
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%g/s: %v", rate, load.ShapeOf(taken)))
		alone[rate] = taken
		loads[rate] = load.WordTokens().Arrivals(load.Quicker(taken, replaySpeed), fake.Model)
	}
	c := harness.Comparison{Name: "routers", Where: harness.AllCPUs}
	for _, m := range replayMetrics {
		c.Metrics = append(c.Metrics, harness.Metric{What: m.what, Unit: m.unit})
	}
	cells := slices.DeleteFunc(replayCells(), func(c replayCell) bool { return !r.Wants(c.name()) })
	if len(cells) == 0 {
		return nil
	}
	for _, cell := range cells {
		k := harness.System{Of: cell.name(), Peer: cell.peer != nil}
		if cell.peer != nil {
			k.Cannot = cell.peer.Cannot(r.Config, cell.connector())
		}
		begun := false
		k.Round = func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
			if !begun { // the warm-up: every replay begins with new processes and empty caches
				begun = true
				return harness.Sample{}, nil
			}
			return replayOne(ctx, r, cell, loads[cell.rate])
		}
		c.Systems = append(c.Systems, k)
	}
	rounds := r.Config
	rounds.Rounds = max(1, r.Rounds/6)
	r.Report.Settings = fmt.Sprintf("engines alone: %d choices of conversations, %d for policies; all CPUs: %d replays of each, in turns", r.Rounds, max(r.Rounds, policySeeds), rounds.Rounds)
	rows, err := c.Measure(ctx, rounds, r.Out)
	if err != nil {
		return err
	}
	beside, err := replaysAlone(cells, alone)
	r.Report.Rows = append(r.Report.Rows, replayRows(cells, rows, beside)...)
	return err
}

// replayTrace reads the trace, or makes one, and lets it run as fast as it is replayed.
func replayTrace(r *harness.Run) ([]load.Request, error) {
	scale := replayQuick * r.Scale
	if r.Trace == "" {
		n := int(sweepWindow.Seconds() * scale * 4) // it has about three a second
		return load.Quicker(load.MadeTrace(n, replaySeed), scale), nil
	}
	f, err := os.Open(r.Trace)
	if err != nil {
		return nil, fmt.Errorf("bench: replay: %w", err)
	}
	trace, err := load.ReadTrace(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return load.Quicker(load.SpreadOut(trace), scale), nil
}

// mostReplay bounds one replay, by the clock.
const mostReplay = 3 * time.Minute

// replayOne replays a load on new engines.
func replayOne(ctx context.Context, r *harness.Run, cell replayCell, arrivals []load.Arrival) (harness.Sample, error) {
	ctx, stop := context.WithTimeout(ctx, mostReplay)
	defer stop()
	spec := sim.Spec{Costs: replayCosts, Connector: cell.connector(), Prefill: cell.fleet.prefill, Decode: cell.fleet.decode, Budget: sim.ChunkBudget, Speed: replaySpeed}
	way := harness.GatewayTarget()
	if cell.fleet.prefill == 0 {
		way.Ready, way.Legs = nil, 1
	}
	settings := fmt.Sprintf("policy: {default: {prefill: %[1]s, decode: %[1]s}}\n", cell.policy)
	if cell.peer != nil {
		way = *cell.peer
		way.Peer = false // its failure is this system's, not one of several's
	}
	m, err := harness.SimSetup{Spec: spec, Settings: settings, Where: harness.AllCPUs, Targets: []harness.Target{way}}.Open(ctx, r.Config)
	if err != nil {
		return harness.Sample{}, err
	}
	defer m.Close()
	idle, err := m.Quiet(ctx)
	if err != nil {
		return harness.Sample{}, err
	}
	had, _, err := m.Fleet(ctx)
	if err != nil {
		return harness.Sample{}, err
	}
	before, err := m.Use()
	if err != nil {
		return harness.Sample{}, err
	}
	outcomes, err := load.OpenLoop(ctx, m.Running[0].Address, arrivals)
	if err != nil {
		return harness.Sample{}, errors.Join(err, m.Running[0].Alive())
	}
	after, err := m.Use()
	if err != nil {
		return harness.Sample{}, err
	}
	got, counts, err := m.Fleet(ctx)
	if err != nil {
		return harness.Sample{}, err
	}
	harness.Scaled(outcomes, replaySpeed)
	sum := load.Summarise(outcomes, replaySLO)
	if err := errors.Join(sum.Verdict(false), harness.Verdict(replayCounts(way, outcomes), counts.Minus(idle))); err != nil {
		return harness.Sample{}, err
	}
	got.Found, got.Possible = got.Found-had.Found, got.Possible-had.Possible
	s := harness.Sample{Disturbance: after.Since(before), Done: sum.Whole}
	s.Late = late99(sum, got)
	for _, f := range replayMetrics {
		s.Figures = append(s.Figures, f.of(sum, got))
	}
	return s, nil
}

// replayCounts is what the engines are asked for: pdrouter has an answer of a single token made by the engine that reads the prompt.
func replayCounts(way harness.Target, outcomes []load.Outcome) fake.Counts {
	var c fake.Counts
	for i := range outcomes {
		legs := way.Legs
		if way.Of == report.Us && outcomes[i].Tokens == 1 {
			legs = 1
		}
		c = c.Plus(harness.Asked(legs, 1))
	}
	return c
}
