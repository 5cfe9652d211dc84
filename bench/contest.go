package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// contest measures several contenders in turns: in each round every one of them, in another order. pdrouter is the first.
type contest struct {
	name, where string
	x           float64 // where its rows stand in a plot with lines, and line: Row says more
	line        string
	metrics     []metric // of each round
	contenders  []contender
}

// metric is one figure of a round, and a row of the report.
type metric struct {
	what, unit string
	goals      []Goal
}

// contender is one of those that are measured.
type contender struct {
	of     string
	peer   bool                                                 // another router, whose failure is told in its place and ends nothing
	cannot string                                               // why it is not measured at all
	only   string                                               // the one metric that says something of it; "" is all
	round  func(context.Context, time.Duration) (sample, error) // applies the load for about that long
}

// sample is what one round of one contender has given.
type sample struct {
	disturbance
	figures []float64 // one a metric
	done    int       // requests, or whatever is counted
}

// warmUp is the length of the round that is not counted: it opens connections, fills caches, and lets a heap grow to what it is
// from then on. Where rounds are short that is less, as it is for a trial.
func warmUp(round time.Duration) time.Duration {
	return min(time.Second, max(300*time.Millisecond, 2*round))
}

// measure has the contest, and returns a row for each metric. A round that the machine disturbed is repeated.
func (c contest) measure(ctx context.Context, cfg Config, out io.Writer) ([]Row, error) {
	p := progressOf(out)
	p.begin(c.name)
	defer p.end()
	m := measuring{contest: c, cfg: cfg, told: p, rounds: make([][][]float64, len(c.contenders))}
	for i := range c.contenders {
		if c.contenders[i].cannot != "" {
			continue
		}
		p.doing("warming up " + c.contenders[i].of)
		if _, err := c.contenders[i].round(ctx, warmUp(cfg.Round)); err != nil {
			if err := m.failed(ctx, i, err); err != nil {
				return nil, err
			}
		}
	}
	p.counts()
	for round := range cfg.Rounds {
		for _, i := range order(round, len(c.contenders)) {
			if c.contenders[i].cannot != "" {
				continue
			}
			p.doing(fmt.Sprintf("round %d/%d %s", round+1, cfg.Rounds, c.contenders[i].of))
			if err := m.round(ctx, i); err != nil {
				return nil, err
			}
			p.measured(c.able() * cfg.Rounds)
		}
		p.mark(".")
	}
	return m.rows(), nil
}

// watched has the machine read before and behind each round of those that tell of no disturbance themselves.
func (c contest) watched() contest {
	c.contenders = slices.Clone(c.contenders)
	for i := range c.contenders {
		round := c.contenders[i].round
		c.contenders[i].round = func(ctx context.Context, d time.Duration) (sample, error) {
			before, err := watch()
			if err != nil {
				return sample{}, err
			}
			got, err := round(ctx, d)
			if err != nil || got.disturbance != (disturbance{}) {
				return got, err
			}
			after, err := watch()
			if after.at.Sub(before.at) >= 10*jiffy { // the machine tells its time in ticks: of less nothing is known, and two are nobody's
				after.own += 2 * jiffy
				got.disturbance = after.since(before)
			}
			return got, err
		}
	}
	return c
}

// able is how many contenders are measured.
func (c contest) able() int {
	n := 0
	for _, x := range c.contenders {
		if x.cannot == "" {
			n++
		}
	}
	return n
}

// measuring is a contest under way.
type measuring struct {
	contest
	told           *progress
	cfg            Config
	rounds         [][][]float64 // by contender, round and metric
	done, repeated int
}

// round measures one round of a contender, again while others use the machine.
func (m *measuring) round(ctx context.Context, i int) error {
	for {
		got, err := m.contenders[i].round(ctx, m.cfg.Round)
		if err != nil {
			return m.failed(ctx, i, err)
		}
		if got.calm(m.cfg) {
			m.rounds[i] = append(m.rounds[i], got.figures)
			m.done += got.done
			return nil
		}
		if m.repeated++; m.repeated > m.cfg.Refuse {
			return fmt.Errorf("bench: %s: the machine is too busy: %d rounds were refused, the last because %v", m.name, m.repeated, got.disturbance)
		}
		m.told.again(m.repeated)
	}
}

// failed ends the contest, unless it was a peer that failed: then it has no figure, and the report says why.
func (m *measuring) failed(ctx context.Context, i int, err error) error {
	c := &m.contenders[i]
	if !c.peer || ctx.Err() != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("bench: %s: %s: %w", m.name, c.of, err))
	}
	c.cannot = "failed: " + firstLine(err.Error())
	m.told.mark("x")
	return nil
}

// rows sums up.
func (m *measuring) rows() []Row {
	var rows []Row
	for k, of := range m.metrics {
		row := Row{Name: m.name, What: of.what, Where: m.where, X: m.x, Line: m.line, Unit: of.unit, Done: m.done, Repeated: m.repeated}
		for i, c := range m.contenders {
			if c.only != "" && c.only != of.what {
				continue
			}
			f := Figure{Of: c.of, Cannot: c.cannot, peer: c.peer}
			for _, figures := range m.rounds[i] {
				if c.cannot == "" {
					f.Rounds = append(f.Rounds, figures[k])
				}
			}
			if i == 0 {
				row.Ours = f
			} else {
				row.Beside = append(row.Beside, f)
			}
		}
		row.sum(of.goals...)
		rows = append(rows, row)
	}
	return rows
}

// order is the order of n contenders in a round: A B, B A, A B … of two, so that a steady drift favours neither, and another
// one in each round of more, the same in every run.
func order(round, n int) []int {
	if n == 2 {
		return []int{round % 2, 1 - round%2}
	}
	return rand.New(rand.NewPCG(uint64(round), uint64(n))).Perm(n)
}
