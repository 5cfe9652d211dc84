package bench

import (
	"context"
	"fmt"
	"runtime"
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

// sweepPoint is one mix at one rate, on each fleet and with each of the rounds' choices of conversations.
type sweepPoint struct {
	mix     replayMix
	rate    float64
	rounds  [][][]float64 // by fleet, round and metric
	asked   int           // requests of all rounds
	prompts int           // their tokens
	answers int
}

func (p *sweepPoint) name() string { return fmt.Sprintf("%s, %g/s", p.mix.name, p.rate) }

// figure is a metric of a fleet.
func (p *sweepPoint) figure(fleet, metric int) Figure {
	f := Figure{Of: replayFleets[fleet].name}
	for _, figures := range p.rounds[fleet] {
		f.Rounds = append(f.Rounds, figures[metric])
	}
	f.Spread = spread(f.Rounds)
	return f
}

// sweep replays every mix at every rate in the engines' own time, and adds the rows and what they come to. A round is another
// choice of the trace's conversations, the same for all fleets.
func (r *Run) sweep(ctx context.Context, trace []traced) error {
	c, err := costsOf(replayCosts)
	if err != nil {
		return err
	}
	window := min(sweepWindow, trace[len(trace)-1].at)
	var points []*sweepPoint
	for _, m := range replayMixes {
		for _, rate := range m.rates {
			p := &sweepPoint{mix: m, rate: rate, rounds: make([][][]float64, len(replayFleets))}
			for i := range p.rounds {
				p.rounds[i] = make([][]float64, r.Pairs)
			}
			if r.wants(p.name()) {
				points = append(points, p)
			}
		}
	}
	if len(points) == 0 {
		return nil
	}
	p := progressOf(r.out)
	p.begin("engines alone")
	defer p.end()
	p.counts()
	for _, at := range points {
		p.doing(at.name())
		if err := at.measure(ctx, c, trace, window); err != nil {
			return err
		}
		p.measured(len(points))
		p.mark(".")
	}
	for _, at := range points {
		for k, what := range sweepMetrics {
			row := Row{Name: fmt.Sprintf("%g/s, %s", at.rate, replayFleets[0].name), What: fmt.Sprintf("%s, %s", what, at.mix.name), X: at.rate, Where: "engines alone", Unit: replayMetricOf(what).unit, Done: at.asked * len(replayFleets), Ours: at.figure(0, k)}
			for f := 1; f < len(replayFleets); f++ {
				row.Beside = append(row.Beside, at.figure(f, k))
			}
			row.sum()
			r.report.Rows = append(r.report.Rows, row)
		}
	}
	r.report.Found = append(r.report.Found, found(points)...)
	return nil
}

// measure replays a point on all fleets, on as many CPUs as there are.
func (p *sweepPoint) measure(ctx context.Context, c costs, trace []traced, window time.Duration) error {
	var loads [][]traced
	for round := range p.rounds[0] {
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
	for f, fleet := range replayFleets {
		for round, load := range loads {
			places <- struct{}{}
			group.Go(func() {
				defer func() { <-places }()
				sum, got, err := virtually(fleet, c, chunkBudget, replayPolicies[0], load)
				if err == nil {
					err = sum.verdict(false)
				}
				var figures []float64
				for _, what := range sweepMetrics {
					figures = append(figures, replayMetricOf(what).of(sum, got))
				}
				mu.Lock()
				defer mu.Unlock()
				if p.rounds[f][round] = figures; err != nil {
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

// tooMuch is the part of the requests, in percent, that the best fleet must serve well: where it does not, none is ahead.
const tooMuch = 25

// found says in a line for each mix which fleet serves most requests well, and where that changes between the best split and the
// aggregated one. One is ahead of the other if it is in every round: else they are level.
func found(points []*sweepPoint) []string {
	var lines []string
	for _, m := range replayMixes {
		var said []string
		var asked, prompts, answers int
		for _, p := range points {
			if p.mix.name != m.name {
				continue
			}
			said = append(said, fmt.Sprintf("%g/s %s", p.rate, p.verdict()))
			asked, prompts, answers = asked+p.asked, prompts+p.prompts, answers+p.answers
		}
		if len(said) > 0 {
			lines = append(lines, fmt.Sprintf("**%s** (prompts of %d tokens, answers of %d in the mean): %s.", m.name, prompts/asked, answers/asked, strings.Join(said, "; ")))
		}
	}
	if len(lines) > 0 {
		lines = append([]string{"Good requests of the best split and of aggregated engines, by requests a second; the one in bold is ahead with every choice of conversations, else they are level:"}, lines...)
	}
	return lines
}

// verdict says who is ahead.
func (p *sweepPoint) verdict() string {
	whole := len(replayFleets) - 1
	best := 0
	for f := range whole {
		if p.figure(f, 0).Median > p.figure(best, 0).Median {
			best = f
		}
	}
	split, aggregated := p.figure(best, 0), p.figure(whole, 0)
	if max(split.Median, aggregated.Median) < tooMuch {
		return fmt.Sprintf("too much for all (%s %.0f %%)", split.Of, split.Median)
	}
	first, second := fmt.Sprintf("%s %.0f %%", split.Of, split.Median), fmt.Sprintf("aggregated %.0f %%", aggregated.Median)
	switch less, more := ahead(split.Rounds, aggregated.Rounds); {
	case less == 0:
		first = "**" + first + "**"
	case more == 0:
		second = "**" + second + "**"
	}
	return first + ", " + second
}

// ahead counts the rounds in which the first is not more than the second, and those in which it is not less.
func ahead(a, b []float64) (less, more int) {
	for i := range a {
		if a[i] <= b[i] {
			less++
		}
		if a[i] >= b[i] {
			more++
		}
	}
	return less, more
}
