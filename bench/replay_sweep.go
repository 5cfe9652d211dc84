package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// replayMix is a trace with prompts and answers of other lengths.
type replayMix struct {
	name           string
	prompt, answer float64   // so many times the trace's tokens: of each prompt its beginning
	rates          []float64 // requests a second: from engines with little to do to more than any of them can do
}

var replayMixes = []replayMix{
	{"as recorded", 1, 1, []float64{.5, 1, 1.5, 2, 2.5, 3}},
	{"prompts ÷ 4", .25, 1, []float64{2, 4, 6, 8, 10}},
	{"answers × 4", 1, 4, []float64{.5, 1, 1.5, 2, 2.5}},
}

// sweepWindow is the engines' time in which the requests of a sweep come.
const sweepWindow = 2 * time.Minute

// sweepMetrics are the figures of a sweep, those of a replay by their names.
var sweepMetrics = []string{"good requests", "goodput", "TTFT p50", "TTFT p99", "ITL p99"}

// of is the trace with the mix's lengths.
func (m replayMix) of(trace []traced) []traced {
	out := make([]traced, len(trace))
	for i, t := range trace {
		t.input, t.output = max(1, int(float64(t.input)*m.prompt)), max(1, int(float64(t.output)*m.answer))
		t.blocks = t.blocks[:(t.input-1)/traceBlock+1]
		out[i] = t
	}
	return out
}

// sweepRun is who serves a sweep's requests.
type sweepRun struct {
	fleet  replayFleet
	policy string
}

// sweepPoint is one mix at one rate, of several runs, each with each of the rounds' choices of conversations.
type sweepPoint struct {
	mix     replayMix
	rate    float64
	runs    []sweepRun
	rounds  [][][]float64 // by run, round and metric
	asked   int           // requests of all rounds
	prompts int           // their tokens
	answers int
}

func (p *sweepPoint) name() string { return fmt.Sprintf("%s, %g/s", p.mix.name, p.rate) }

// figure is a metric of a run.
func (p *sweepPoint) figure(of string, run, metric int) Figure {
	f := Figure{Of: of}
	for _, figures := range p.rounds[run] {
		f.Rounds = append(f.Rounds, figures[metric])
	}
	f.Spread = spread(f.Rounds)
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
		for _, rate := range m.rates {
			points = append(points, &sweepPoint{mix: m, rate: rate, runs: each})
		}
	}
	return append(points, &sweepPoint{mix: replayMixes[0], rate: replayMiddle, runs: every})
}

// sweep replays every point in the engines' own time, and adds the rows and what they come to. A round is another choice of the
// trace's conversations, the same for all runs.
func (r *Run) sweep(ctx context.Context, trace []traced) error {
	c, err := costsOf(replayCosts)
	if err != nil {
		return err
	}
	window := min(sweepWindow, trace[len(trace)-1].at)
	points := slices.DeleteFunc(sweepPoints(), func(p *sweepPoint) bool { return !r.wants(p.name()) })
	if len(points) == 0 {
		return nil
	}
	p := progressOf(r.out)
	p.begin("engines alone")
	defer p.end()
	p.counts()
	for _, at := range points {
		p.doing(at.name())
		if err := at.measure(ctx, c, trace, window, r.Rounds); err != nil {
			return err
		}
		p.measured(len(points))
		p.mark(".")
	}
	for _, at := range points {
		r.report.Rows = append(r.report.Rows, at.rows()...)
	}
	r.report.Found = append(r.report.Found, found(points)...)
	return nil
}

// policies reports whether the point's runs are policies beside each other, for each fleet, and not fleets.
func (p *sweepPoint) policies() bool { return len(p.runs) > len(replayFleets) }

// rows are the point's: points of lines for fleets, bars for policies.
func (p *sweepPoint) rows() []Row {
	var rows []Row
	for k, what := range sweepMetrics {
		one := Row{What: what, Where: "engines alone", Unit: replayMetricOf(what).unit, Done: p.asked * len(p.runs)}
		if !p.policies() {
			row := one
			row.Name, row.What, row.X = fmt.Sprintf("%g/s, %s", p.rate, p.runs[0].fleet.name), what+", "+p.mix.name, p.rate
			row.Ours = p.figure(p.runs[0].fleet.name, 0, k)
			for i, run := range p.runs[1:] {
				row.Beside = append(row.Beside, p.figure(run.fleet.name, i+1, k))
			}
			row.sum()
			rows = append(rows, row)
			continue
		}
		for i := 0; i < len(p.runs); i += len(replayPolicies) {
			row := one
			row.Name = fmt.Sprintf("%s, %s, %g/s", p.runs[i].fleet.name, p.runs[i].policy, p.rate)
			row.Ours = p.figure(p.runs[i].policy, i, k)
			for j := i + 1; j < i+len(replayPolicies); j++ {
				row.Beside = append(row.Beside, p.figure(p.runs[j].policy, j, k))
			}
			row.sum()
			rows = append(rows, row)
		}
	}
	return rows
}

// measure replays a point, on as many CPUs as there are.
func (p *sweepPoint) measure(ctx context.Context, c costs, trace []traced, window time.Duration, rounds int) error {
	for range p.runs {
		p.rounds = append(p.rounds, make([][]float64, rounds))
	}
	var loads [][]traced
	for round := range rounds {
		load := p.mix.of(atRate(trace, window, p.rate, uint64(replaySeed+round)))
		if len(load) < int(p.rate*window.Seconds()) {
			return fmt.Errorf("bench: replay: the trace has %d requests in %v of the engines' time; want %g a second", len(load), window, p.rate)
		}
		for _, t := range load {
			p.prompts, p.answers = p.prompts+t.input, p.answers+t.output
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
				sum, got, err := virtually(run.fleet, c, chunkBudget, run.policy, load)
				if err == nil {
					err = sum.verdict(false)
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

// found says in a line for each mix whether the best split or the aggregated engines serve more requests well, and at which rates.
// One is ahead of the other if it is in every round: else they are level.
func found(points []*sweepPoint) []string {
	var lines []string
	for _, m := range replayMixes {
		ahead := map[string][]string{}
		var order, said []string
		var asked, prompts, answers int
		for _, p := range points {
			if p.mix.name != m.name || p.policies() {
				continue
			}
			asked, prompts, answers = asked+p.asked, prompts+p.prompts, answers+p.answers
			who, split, aggregated := p.verdict()
			said = append(said, fmt.Sprintf("%.0f %% (%s) and %.0f %% at %g/s", split.Median, split.Of, aggregated.Median, p.rate))
			if who == "" {
				continue
			}
			if ahead[who] == nil {
				order = append(order, who)
			}
			ahead[who] = append(ahead[who], fmt.Sprintf("%g", p.rate))
		}
		if len(said) == 0 {
			continue
		}
		won := "none is ahead"
		for i, who := range order {
			if order[i] = fmt.Sprintf("%s at %s/s", who, strings.Join(ahead[who], ", ")); i == 0 {
				order[i] = fmt.Sprintf("%s is ahead at %s/s", who, strings.Join(ahead[who], ", "))
			}
			won = strings.Join(order, ", ")
		}
		lines = append(lines, fmt.Sprintf("**%s** (prompts of %d tokens, answers of %d in the mean): %s. %s.", m.name, prompts/asked, answers/asked, won, strings.Join(said, ", ")))
	}
	if len(lines) > 0 {
		lines = append([]string{"Which is better, split or aggregated, by the part of the requests that are good: that of the best split, and of aggregated engines. One is ahead if it is with every choice of conversations; else they are level."}, lines...)
	}
	return lines
}

// verdict says which is ahead, "" if none is, and how many requests are good with the best split and with aggregated engines.
func (p *sweepPoint) verdict() (who string, split, aggregated Figure) {
	whole := len(replayFleets) - 1
	for f := range whole {
		if g := p.figure(replayFleets[f].name, f, 0); f == 0 || g.Median > split.Median {
			split = g
		}
	}
	aggregated = p.figure(replayFleets[whole].name, whole, 0)
	less, more := 0, 0
	for i, a := range split.Rounds {
		if a <= aggregated.Rounds[i] {
			less++
		}
		if a >= aggregated.Rounds[i] {
			more++
		}
	}
	switch {
	case less == 0:
		who = split.Of
	case more == 0:
		who = aggregated.Of
	}
	return who, split, aggregated
}
