package planevllm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/stock"
)

// rest is what both pairs use while nobody asks them for anything.
func (s *planeVLLM) rest(name string) harness.Comparison {
	c := harness.Comparison{Name: name, Where: vllmWhere, Metrics: vllmMetrics("% core")}
	for i, p := range s.pairs {
		c.Systems = append(c.Systems, harness.System{Of: p.of, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			if err := s.awake(ctx, i); err != nil {
				return harness.Sample{}, err
			}
			if err := harness.Pause(ctx, queuesYield); err != nil {
				return harness.Sample{}, err
			}
			before, err := p.used()
			if err != nil {
				return harness.Sample{}, err
			}
			begun := time.Now()
			if err := harness.Pause(ctx, d); err != nil {
				return harness.Sample{}, err
			}
			elapsed := time.Since(begun)
			after, err := p.used()
			if err != nil {
				return harness.Sample{}, err
			}
			figures, err := after.since(before, float64(elapsed)/100)
			return harness.Sample{Figures: figures, Done: 1}, err
		}})
	}
	return c
}

// queuesYield is longer than vLLM's message queues go on yielding the CPU behind their last message: 1 s.
const queuesYield = 2 * time.Second

const vllmWhere = "prefill on one CPU, decode on another"

// handovers measures hand-offs of prompts of so many tokens, in pairs.
func (s *planeVLLM) handovers(ctx context.Context, tokens int) error {
	c := harness.Comparison{Name: rowHandover(tokens), Where: vllmWhere, Metrics: []harness.Metric{{What: "prefill's answer to first event", Unit: "ms"}, {What: "TTFT", Unit: "ms"}}}
	if !s.Wants(c.Name) {
		return nil
	}
	// Each prompt is for both pairs: whoever is asked second in a round is asked for the same one.
	prompts := [2][]string{}
	for i, p := range s.pairs {
		c.Systems = append(c.Systems, harness.System{Of: p.of, Round: func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
			if len(prompts[i]) == 0 {
				next := s.nextPrompt(tokens)
				prompts[0], prompts[1] = append(prompts[0], next), append(prompts[1], next)
			}
			prompt := prompts[i][0]
			prompts[i] = prompts[i][1:]
			if err := s.awake(ctx, i); err != nil {
				return harness.Sample{}, err
			}
			p.Relay.Expect()
			got, begun, err := p.ask(ctx, prompt)
			if err != nil {
				return harness.Sample{}, err
			}
			passed, err := p.Relay.Passed(ctx)
			if err != nil {
				return harness.Sample{}, err
			}
			figures := []float64{report.Millis(got.First.Sub(passed)), report.Millis(got.First.Sub(begun))}
			return harness.Sample{Figures: figures, Done: 1}, p.check(ctx, tokens, []string{prompt}, []stock.Heard{got})
		}})
	}
	cfg := s.Config
	cfg.Rounds, cfg.Others = max(s.Rounds, stock.StockRounds), math.Inf(1) // rounds are too short for the machine's ticks: pairs of them tell
	rows, err := c.Measure(ctx, cfg, s.Out)
	if err != nil {
		return err
	}
	s.Report.Rows = append(s.Report.Rows, rows...)
	for _, row := range rows {
		s.note(row.Name+", "+row.What, row.Ours.Rounds, row.Beside[0].Rounds, row.Unit)
	}
	return nil
}

// requests measures the CPU time of requests with prompts of so many tokens, and of the same work without a transfer.
func (s *planeVLLM) requests(ctx context.Context, tokens int) error {
	c := harness.Comparison{Name: rowRequest(tokens), Where: vllmWhere, Metrics: vllmMetrics("ms CPU")}
	if !s.Wants(c.Name) {
		return nil
	}
	for i, p := range s.pairs {
		p.moved = nil
		c.Systems = append(c.Systems, s.costing(p.of, i, func(ctx context.Context, end time.Time) (int, func() error, error) {
			var prompts []string
			var answers []stock.Heard
			for len(prompts) == 0 || time.Now().Before(end) {
				prompt := s.nextPrompt(tokens)
				got, _, err := p.ask(ctx, prompt)
				if err != nil {
					return 0, nil, err
				}
				prompts, answers = append(prompts, prompt), append(answers, got)
			}
			return len(prompts), func() error { return p.check(ctx, tokens, prompts, answers) }, nil
		}))
	}
	for i, p := range s.pairs { // behind those: decode holds prompts then
		c.Systems = append(c.Systems, s.costing(p.of+atHand, i, func(ctx context.Context, end time.Time) (int, func() error, error) {
			n := 0
			for ; n == 0 || time.Now().Before(end); n++ {
				if err := p.compute(ctx, s.nextPrompt(tokens)); err != nil {
					return 0, nil, err
				}
				if _, err := p.alone(ctx, 1, p.moved[n%len(p.moved)]); err != nil {
					return 0, nil, err
				}
			}
			return n, func() error {
				return p.account(ctx, func(grew tokenSources) error { return grew.atHand(n, tokens) })
			}, nil
		}))
	}
	nth := len(s.Report.Rows)
	if err := s.comparisonOf(ctx, c, s.Rounds, s.Round/2); err != nil {
		return err
	}
	for _, row := range s.Report.Rows[nth:] {
		ours, other := less(row.Ours, *row.Of(report.Us + atHand)), less(*row.Of(nixlPush), *row.Of(nixlPush + atHand))
		s.note(row.Name+", "+row.What+", the transfer's part", ours, other, row.Unit)
	}
	return nil
}

const atHand = ", KV at hand"

// costing is the CPU time of a pair for each of the requests that a load makes until an end. What the load returns is checked behind
// the last reading.
func (s *planeVLLM) costing(of string, i int, load func(ctx context.Context, end time.Time) (n int, check func() error, err error)) harness.System {
	p := s.pairs[i]
	return harness.System{Of: of, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		if err := s.awake(ctx, i); err != nil {
			return harness.Sample{}, err
		}
		before, err := p.used()
		if err != nil {
			return harness.Sample{}, err
		}
		n, check, err := load(ctx, time.Now().Add(d))
		if err != nil {
			return harness.Sample{}, err
		}
		after, err := p.used()
		if err != nil {
			return harness.Sample{}, err
		}
		figures, err := after.since(before, float64(n)*float64(time.Millisecond))
		return harness.Sample{Figures: figures, Done: n}, errors.Join(err, check())
	}}
}

// less is what a figure is more than another one, round by round.
func less(a, b report.Figure) []float64 {
	d := slices.Clone(a.Rounds)
	for i := range d {
		d[i] -= b.Rounds[i]
	}
	return d
}

// note tells both medians and that of the difference, each with the interval that holds it with 95 %.
func (s *planeVLLM) note(what string, ours, other []float64, unit string) {
	between := func(figures []float64) string {
		if len(figures) < 6 { // no two of so few hold it so surely
			return fmt.Sprintf("%.2f", report.SpreadOf(figures).Median)
		}
		low, high := stock.MedianInterval(figures)
		return fmt.Sprintf("%.2f (%.2f to %.2f)", report.SpreadOf(figures).Median, low, high)
	}
	s.Report.Notes = append(s.Report.Notes, fmt.Sprintf("%s: pdrouter %s, %s %s, pdrouter less that %s %s, of %d rounds.",
		what, between(ours), nixlPush, between(other), between(less(report.Figure{Rounds: ours}, report.Figure{Rounds: other})), unit, len(ours)))
}
