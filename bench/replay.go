package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// replaySuite replays a trace of conversations on fleets of modelled engines.
func replaySuite() Suite {
	return Suite{
		Name:  "replay/mooncake",
		Brief: "conversations on four modelled engines: split or aggregated, and by policy",
		run:   func(ctx context.Context, r *Run) error { return r.replay(ctx) },
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

// readers are the engines that compute prompts.
func (f replayFleet) readers() int {
	if f.prefill == 0 {
		return f.decode
	}
	return f.prefill
}

var replayFleets = []replayFleet{{"3P1D", 3, 1}, {"2P2D", 2, 2}, {"1P3D", 1, 3}, {"aggregated", 0, 4}}

// The policies that are compared. The first is pdrouter's default.
var replayPolicies = []string{"least_load", "power_of_two", "round_robin", byPrefix}

// byPrefix is the policy that looks at what engines have of a prompt: it is to find what can be found, and serve no fewer well.
const byPrefix = "prefix"

// replayCell is what one replay measures.
type replayCell struct {
	fleet  replayFleet
	pull   bool   // else push
	policy string // of pdrouter; "" where a peer routes
	peer   *target
	rate   float64
}

func (c replayCell) name() string {
	if c.peer != nil {
		return fmt.Sprintf("%s %s %g/s", c.engines(), c.peer.of, c.rate)
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
	for _, x := range peerTargets() {
		if x.of != "sglang-router" {
			cells = append(cells, replayCell{fleet: replayFleets[1], pull: true, peer: &x, rate: replayMiddle})
		}
	}
	for _, f := range replayFleets {
		for _, rate := range replayRates {
			cells = append(cells, replayCell{fleet: f, policy: replayPolicies[0], rate: rate})
		}
		cells = append(cells, replayCell{fleet: f, policy: byPrefix, rate: replayMiddle})
		for _, x := range peerTargets() {
			if x.of == "vllm-router" && f.prefill > 0 {
				cells = append(cells, replayCell{fleet: f, peer: &x, rate: replayMiddle})
			}
		}
	}
	return cells
}

// replayMetric is a figure of a replay.
type replayMetric struct {
	what, unit string
	of         func(summary, fleetReading) float64
	tail       bool // of requests: there is none of few
}

var replayMetrics = []replayMetric{
	{"goodput", "1/s", func(s summary, _ fleetReading) float64 { return s.goodput() }, false},
	{"good requests", "%", func(s summary, _ fleetReading) float64 { return 100 * float64(s.good) / float64(s.asked) }, false},
	{"TTFT p50", "ms", func(s summary, _ fleetReading) float64 { return millis(s.ttft.p50) }, false},
	{"TTFT p99", "ms", func(s summary, _ fleetReading) float64 { return millis(s.ttft.p99) }, true},
	{"ITL p50", "ms", func(s summary, _ fleetReading) float64 { return millis(s.itl.p50) }, false},
	{"ITL p99", "ms", func(s summary, _ fleetReading) float64 { return millis(s.itl.p99) }, false},
	{engineITL, "ms", func(_ summary, f fleetReading) float64 { return millis(f.ITL99) }, false},
	{"TPOT p99", "ms", func(s summary, _ fleetReading) float64 { return millis(s.tpot.p99) }, true},
	{hitsMetric, "% of possible", func(_ summary, f fleetReading) float64 { return 100 * float64(f.Found) / float64(f.Possible) }, false},
	{lateMetric, "ms of the clock", func(s summary, f fleetReading) float64 { return millis(late99(s, f)) }, false},
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
func late99(s summary, f fleetReading) time.Duration { return max(f.Late99, s.late.p99/replaySpeed) }

// replay has the engines alone replay all mixes, then measures all cells in turns, and adds their rows.
func (r *Run) replay(ctx context.Context) error {
	trace, err := r.replayTrace()
	if err != nil {
		return err
	}
	r.report.Axis = "requests a second"
	if err := r.sweep(ctx, trace); err != nil {
		return err
	}
	loads, alone := map[float64][]arrival{}, map[float64][]traced{}
	for _, rate := range replayRates {
		taken := atRate(trace, replayWindow, rate, replaySeed)
		if len(taken) < int(rate*replayWindow.Seconds()) {
			return fmt.Errorf("bench: replay: the trace has %d requests in %v of its time; want at least %g a second of a %d-th of that", len(taken), time.Duration(float64(replayWindow)*replayQuick*r.Scale), rate, replayQuick)
		}
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("%g/s: %v", rate, shapeOf(taken)))
		alone[rate] = taken
		loads[rate] = wordTokens().arrivals(quicker(taken, replaySpeed), benchModel)
	}
	c := contest{name: "routers", where: allCPUs}
	for _, m := range replayMetrics {
		c.metrics = append(c.metrics, metric{what: m.what, unit: m.unit})
	}
	cells := slices.DeleteFunc(replayCells(), func(c replayCell) bool { return !r.wants(c.name()) })
	if len(cells) == 0 {
		return nil
	}
	for _, cell := range cells {
		k := contender{of: cell.name(), peer: cell.peer != nil}
		if cell.peer != nil {
			k.cannot = cell.peer.cannot(r.Config, cell.connector())
		}
		begun := false
		k.round = func(ctx context.Context, _ time.Duration) (sample, error) {
			if !begun { // the warm-up: every replay begins with new processes and empty caches
				begun = true
				return sample{}, nil
			}
			return r.replayOne(ctx, cell, loads[cell.rate])
		}
		c.contenders = append(c.contenders, k)
	}
	rounds := r.Config
	rounds.Rounds = max(1, r.Rounds/6)
	r.report.Settings = fmt.Sprintf("engines alone: %d choices of conversations, %d for policies; all CPUs: %d replays of each, in turns", r.Rounds, max(r.Rounds, policySeeds), rounds.Rounds)
	rows, err := c.measure(ctx, rounds, r.out)
	if err != nil {
		return err
	}
	beside, err := replaysAlone(cells, alone)
	r.report.Rows = append(r.report.Rows, replayRows(cells, rows, beside)...)
	return err
}

// replayTrace reads the trace, or makes one, and lets it run as fast as it is replayed.
func (r *Run) replayTrace() ([]traced, error) {
	scale := replayQuick * r.Scale
	if r.Trace == "" {
		n := int(sweepWindow.Seconds() * scale * 4) // it has about three a second
		return quicker(madeTrace(n, replaySeed), scale), nil
	}
	f, err := os.Open(r.Trace)
	if err != nil {
		return nil, fmt.Errorf("bench: replay: %w", err)
	}
	trace, err := readTrace(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return quicker(spreadOut(trace), scale), nil
}

// mostReplay bounds one replay, by the clock.
const mostReplay = 3 * time.Minute

// replayOne replays a load on new engines.
func (r *Run) replayOne(ctx context.Context, cell replayCell, load []arrival) (sample, error) {
	ctx, stop := context.WithTimeout(ctx, mostReplay)
	defer stop()
	spec := ModelledSpec{Costs: replayCosts, Connector: cell.connector(), Prefill: cell.fleet.prefill, Decode: cell.fleet.decode, Budget: chunkBudget, Speed: replaySpeed}
	way := gatewayTarget()
	if cell.fleet.prefill == 0 {
		way.ready, way.legs = nil, 1
	}
	settings := fmt.Sprintf("policy: {default: {prefill: %[1]s, decode: %[1]s}}\n", cell.policy)
	if cell.peer != nil {
		way = *cell.peer
		way.peer = false // its failure is this contender's, not one of several's
	}
	m, err := modelledCast{spec: spec, settings: settings, where: allCPUs, targets: []target{way}}.open(ctx, r.Config)
	if err != nil {
		return sample{}, err
	}
	defer m.close()
	idle, err := m.quiet(ctx)
	if err != nil {
		return sample{}, err
	}
	had, _, err := m.fleet(ctx)
	if err != nil {
		return sample{}, err
	}
	before, err := m.use()
	if err != nil {
		return sample{}, err
	}
	outcomes, err := openLoop(ctx, m.running[0].address, load)
	if err != nil {
		return sample{}, errors.Join(err, m.running[0].alive())
	}
	after, err := m.use()
	if err != nil {
		return sample{}, err
	}
	got, counts, err := m.fleet(ctx)
	if err != nil {
		return sample{}, err
	}
	scaled(outcomes, replaySpeed)
	sum := summarise(outcomes, replaySLO)
	if err := errors.Join(sum.verdict(false), verdict(replayCounts(way, outcomes), counts.minus(idle))); err != nil {
		return sample{}, err
	}
	got.Found, got.Possible = got.Found-had.Found, got.Possible-had.Possible
	s := sample{disturbance: after.since(before), done: sum.whole}
	s.late = late99(sum, got)
	for _, f := range replayMetrics {
		s.figures = append(s.figures, f.of(sum, got))
	}
	return s, nil
}

// replayCounts is what the engines are asked for: pdrouter has an answer of a single token made by the engine that reads the prompt.
func replayCounts(way target, outcomes []outcome) Counts {
	var c Counts
	for i := range outcomes {
		legs := way.legs
		if way.of == us && outcomes[i].tokens == 1 {
			legs = 1
		}
		c = c.plus(asked(legs, 1))
	}
	return c
}
