package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"pdrouter/bench/report"
)

// Comparison measures several systems in turns: in each round every one of them, in another order. pdrouter is the first.
type Comparison struct {
	Name, Where string
	x           float64 // where its rows stand in a plot with lines, and line: Row says more
	line        string
	Metrics     []Metric // of each round
	Systems     []System
}

// Metric is one figure of a round, and a row of the report.
type Metric struct {
	What, Unit string
	Goals      []report.Goal
}

// System is one of those that are measured.
type System struct {
	Of     string
	Peer   bool                                                 // another router, whose failure is told in its place and ends nothing
	Cannot string                                               // why it is not measured at all
	Only   string                                               // the one metric that says something of it; "" is all
	Round  func(context.Context, time.Duration) (Sample, error) // applies the load for about that long
}

// Sample is what one round of one system has given.
type Sample struct {
	Disturbance
	Figures []float64 // one a metric
	Done    int       // requests, or whatever is counted
}

// warmUp is the length of the round that is not counted: it opens connections, fills caches, and lets a heap grow to what it is
// from then on. Where rounds are short that is less, as it is for a trial.
func warmUp(round time.Duration) time.Duration {
	return min(time.Second, max(300*time.Millisecond, 2*round))
}

// Measure has the comparison, and returns a row for each metric. A round that the machine disturbed is repeated.
func (c Comparison) Measure(ctx context.Context, cfg Config, out io.Writer) ([]report.Row, error) {
	p := ProgressOf(out)
	p.Begin(c.Name)
	defer p.End()
	m := measuring{Comparison: c, cfg: cfg, told: p, rounds: make([][][]float64, len(c.Systems))}
	for i := range c.Systems {
		if c.Systems[i].Cannot != "" {
			continue
		}
		p.Doing("warming up " + c.Systems[i].Of)
		if _, err := c.Systems[i].Round(ctx, warmUp(cfg.Round)); err != nil {
			if err := m.failed(ctx, i, err); err != nil {
				return nil, err
			}
		}
	}
	p.Counts()
	for round := range cfg.Rounds {
		for _, i := range order(round, len(c.Systems)) {
			if c.Systems[i].Cannot != "" {
				continue
			}
			p.Doing(fmt.Sprintf("round %d/%d %s", round+1, cfg.Rounds, c.Systems[i].Of))
			if err := m.round(ctx, i); err != nil {
				return nil, err
			}
			p.Measured(c.able() * cfg.Rounds)
		}
		p.Mark(".")
	}
	return m.rows(), nil
}

// watched has the machine read before and behind each round of those that tell of no disturbance themselves.
func (c Comparison) watched() Comparison {
	c.Systems = slices.Clone(c.Systems)
	for i := range c.Systems {
		round := c.Systems[i].Round
		c.Systems[i].Round = func(ctx context.Context, d time.Duration) (Sample, error) {
			before, err := watch()
			if err != nil {
				return Sample{}, err
			}
			got, err := round(ctx, d)
			if err != nil || got.Disturbance != (Disturbance{}) {
				return got, err
			}
			after, err := watch()
			if after.At.Sub(before.At) >= 10*jiffy { // the machine tells its time in ticks: of less nothing is known, and two are nobody's
				after.own += 2 * jiffy
				got.Disturbance = after.Since(before)
			}
			return got, err
		}
	}
	return c
}

// able is how many systems are measured.
func (c Comparison) able() int {
	n := 0
	for _, x := range c.Systems {
		if x.Cannot == "" {
			n++
		}
	}
	return n
}

// measuring is a comparison under way.
type measuring struct {
	Comparison
	told           *progress
	cfg            Config
	rounds         [][][]float64 // by system, round and metric
	done, repeated int
}

// round measures one round of a system, again while others use the machine.
func (m *measuring) round(ctx context.Context, i int) error {
	for {
		got, err := m.Systems[i].Round(ctx, m.cfg.Round)
		if err != nil {
			return m.failed(ctx, i, err)
		}
		if got.Calm(m.cfg) {
			m.rounds[i] = append(m.rounds[i], got.Figures)
			m.done += got.Done
			return nil
		}
		if m.repeated++; m.repeated > m.cfg.Refuse {
			return fmt.Errorf("bench: %s: the machine is too busy: %d rounds were refused, the last because %v", m.Name, m.repeated, got.Disturbance)
		}
		m.told.again(m.repeated)
	}
}

// failed ends the comparison, unless it was a peer that failed: then it has no figure, and the report says why.
func (m *measuring) failed(ctx context.Context, i int, err error) error {
	c := &m.Systems[i]
	if !c.Peer || ctx.Err() != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("bench: %s: %s: %w", m.Name, c.Of, err))
	}
	c.Cannot = "failed: " + FirstLine(err.Error())
	m.told.Mark("x")
	return nil
}

// rows sums up.
func (m *measuring) rows() []report.Row {
	var rows []report.Row
	for k, of := range m.Metrics {
		row := report.Row{Name: m.Name, What: of.What, Where: m.Where, X: m.x, Line: m.line, Unit: of.Unit, Done: m.done, Repeated: m.repeated}
		for i, c := range m.Systems {
			if c.Only != "" && c.Only != of.What {
				continue
			}
			f := report.Figure{Of: c.Of, Cannot: c.Cannot, Peer: c.Peer}
			for _, figures := range m.rounds[i] {
				if c.Cannot == "" {
					f.Rounds = append(f.Rounds, figures[k])
				}
			}
			if i == 0 {
				row.Ours = f
			} else {
				row.Beside = append(row.Beside, f)
			}
		}
		row.Sum(of.Goals...)
		rows = append(rows, row)
	}
	return rows
}

// order is the order of n systems in a round: A B, B A, A B … of two, so that a steady drift favours neither, and another
// one in each round of more, the same in every run.
func order(round, n int) []int {
	if n == 2 {
		return []int{round % 2, 1 - round%2}
	}
	return rand.New(rand.NewPCG(uint64(round), uint64(n))).Perm(n)
}

// TailOf is how many figures a 99th percentile needs.
const TailOf = 100
