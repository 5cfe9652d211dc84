package replay

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
	"pdrouter/bench/simulate"
)

// replayMixes are at rates from engines with little to do to more than any of them can do.
var replayMixes = []simulate.Mix{
	{Name: "as recorded", Prompt: 1, Answer: 1, Rates: []float64{.5, 1, 1.5, 2, 2.5, 3}},
	{Name: "prompts ÷ 4", Prompt: .25, Answer: 1, Rates: []float64{2, 4, 6, 8, 10}},
	{Name: "answers × 4", Prompt: 1, Answer: 4, Rates: []float64{.5, 1, 1.5, 2, 2.5}},
}

// sweepWindow is the engines' time in which the requests of a sweep come.
const sweepWindow = 2 * time.Minute

// policySeeds is how many choices of conversations policies are compared with at least: they differ by less than two choices do.
const policySeeds = 20

// sweepMetrics are the figures of a sweep, those of a replay by their names.
var sweepMetrics = []string{"good requests", "goodput", "TTFT p50", "TTFT p99", "ITL p99", hitsMetric}

// sweepRun is who serves a sweep's requests.
type sweepRun struct {
	fleet  replayFleet
	policy string
}

// sweepPoint is one mix at one rate, of several runs, each with each of the rounds' choices of conversations.
type sweepPoint struct {
	mix     simulate.Mix
	rate    float64
	runs    []sweepRun
	rounds  [][][]float64 // by run, round and metric
	asked   int           // requests of all rounds
	prompts int           // their tokens
	answers int
}

func (p *sweepPoint) name() string { return fmt.Sprintf("%s, %g/s", p.mix.Name, p.rate) }

// figure is a metric of a run.
func (p *sweepPoint) figure(of string, run, metric int) report.Figure {
	f := report.Figure{Of: of}
	for _, figures := range p.rounds[run] {
		f.Rounds = append(f.Rounds, figures[metric])
	}
	f.Spread = report.SpreadOf(f.Rounds)
	return f
}

// sweepPoints are all points: each mix at each rate with the default policy on all fleets, and all policies on all fleets.
func sweepPoints() []*sweepPoint {
	var points []*sweepPoint
	var each, every []sweepRun
	for _, f := range replayFleets {
		each = append(each, sweepRun{f, replayPolicies[0]})
		for _, policy := range replayPolicies {
			every = append(every, sweepRun{f, policy})
		}
	}
	for _, m := range replayMixes {
		for _, rate := range m.Rates {
			points = append(points, &sweepPoint{mix: m, rate: rate, runs: each})
		}
	}
	return append(points, &sweepPoint{mix: replayMixes[0], rate: replayMiddle, runs: every})
}

// sweep replays every point in the engines' own time, and adds the rows and what they come to. A round is another choice of the
// trace's conversations, the same for all runs.
func sweep(ctx context.Context, r *harness.Run, trace []load.Request) error {
	c, err := sim.CostsOf(replayCosts)
	if err != nil {
		return err
	}
	window := min(sweepWindow, trace[len(trace)-1].At)
	points := slices.DeleteFunc(sweepPoints(), func(p *sweepPoint) bool { return !r.Wants(p.name()) })
	if len(points) == 0 {
		return nil
	}
	p := harness.ProgressOf(r.Out)
	p.Begin("engines alone")
	defer p.End()
	p.Counts()
	for _, at := range points {
		p.Doing(at.name())
		seeds := r.Rounds
		if at.policies() {
			seeds = max(seeds, policySeeds)
		}
		if err := at.measure(ctx, c, trace, window, seeds); err != nil {
			return err
		}
		p.Measured(len(points))
		p.Mark(".")
	}
	for _, at := range points {
		r.Report.Rows = append(r.Report.Rows, at.rows()...)
	}
	r.Report.Found = append(append(r.Report.Found, found(points)...), policiesFound(points)...)
	return nil
}

// policies reports whether the point's runs are policies beside each other, for each fleet, and not fleets.
func (p *sweepPoint) policies() bool { return len(p.runs) > len(replayFleets) }

// rows are the point's: points of lines for fleets, bars for policies.
func (p *sweepPoint) rows() []report.Row {
	var rows []report.Row
	for k, what := range sweepMetrics {
		if p.asked < harness.TailOf*len(p.rounds[0]) && replayMetricOf(what).tail {
			continue
		}
		one := report.Row{What: what, Where: "engines alone", Unit: replayMetricOf(what).unit, Done: p.asked * len(p.runs)}
		if !p.policies() {
			if what == hitsMetric { // who reads which prompts is a matter of the policy
				continue
			}
			row := one
			row.Name, row.What, row.X = fmt.Sprintf("%g/s, %s", p.rate, p.runs[0].fleet.name), what+", "+p.mix.Name, p.rate
			row.Ours = p.figure(p.runs[0].fleet.name, 0, k)
			for i, run := range p.runs[1:] {
				row.Beside = append(row.Beside, p.figure(run.fleet.name, i+1, k))
			}
			row.Sum()
			rows = append(rows, row)
			continue
		}
		for i := 0; i < len(p.runs); i += len(replayPolicies) {
			row := one
			for j := i; j < i+len(replayPolicies); j++ {
				if f := p.figure(p.runs[j].policy, j, k); f.Of == ByPrefix {
					row.Ours = f
				} else {
					row.Beside = append(row.Beside, f)
				}
			}
			row.Name = fmt.Sprintf("%s, %s, %g/s", p.runs[i].fleet.name, row.Ours.Of, p.rate)
			row.Sum(prefixGoals(row, p.runs[i].fleet)...)
			rows = append(rows, row)
		}
	}
	return rows
}

// prefixGoals are those of a row of the policy prefix, where there is something to choose: what can be found of prompts is found, and as
// many requests as with any other policy are good.
func prefixGoals(row report.Row, fleet replayFleet) []report.Goal {
	if fleet.readers() < 2 {
		return nil
	}
	switch row.What {
	case hitsMetric:
		return []report.Goal{{Plus: 95, AtLeast: true}}
	case "goodput":
		var goals []report.Goal
		for _, f := range row.Beside {
			if !f.Peer {
				goals = append(goals, report.Goal{Beside: f.Of, Times: 1, AtLeast: true})
			}
		}
		return goals
	}
	return nil
}

// measure replays a point, on as many CPUs as there are.
func (p *sweepPoint) measure(ctx context.Context, c sim.Costs, trace []load.Request, window time.Duration, rounds int) error {
	for range p.runs {
		p.rounds = append(p.rounds, make([][]float64, rounds))
	}
	var loads [][]load.Request
	for round := range rounds {
		load := p.mix.Of(load.AtRate(trace, window, p.rate, uint64(replaySeed+round)))
		if len(load) < int(p.rate*window.Seconds()) {
			return fmt.Errorf("bench: replay: the trace has %d requests in %v of the engines' time; want %g a second", len(load), window, p.rate)
		}
		for _, t := range load {
			p.prompts, p.answers = p.prompts+t.Input, p.answers+t.Output
		}
		p.asked += len(load)
		loads = append(loads, load)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed error
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, run := range p.runs {
		for round, load := range loads {
			places <- struct{}{}
			group.Go(func() {
				defer func() { <-places }()
				sum, got, err := virtually(run.fleet, c, sim.ChunkBudget, run.policy, load)
				if err == nil {
					err = sum.Verdict(false)
				}
				var figures []float64
				for _, what := range sweepMetrics {
					figures = append(figures, replayMetricOf(what).of(sum, got))
				}
				mu.Lock()
				defer mu.Unlock()
				if p.rounds[i][round] = figures; err != nil {
					failed = err
				}
			})
			if ctx.Err() != nil {
				break
			}
		}
	}
	group.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return failed
}
