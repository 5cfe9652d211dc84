package bench

import (
	"fmt"
	"slices"
	"strings"
)

// cellFigure is a cell's figure of a metric's row, which has all cells; nil if it was not measured.
func cellFigure(cells []replayCell, row Row, cell replayCell) *Figure {
	for _, f := range append([]Figure{row.Ours}, row.Beside...) {
		if f.Of == cell.name() && slices.ContainsFunc(cells, func(c replayCell) bool { return c.name() == f.Of }) {
			return &f
		}
	}
	return nil
}

// replayRows makes rows of all cells' figures: for each rate, the fleets beside each other; for each fleet, the policies and
// peers.
func replayRows(cells []replayCell, all []Row) []Row {
	var rows []Row
	add := func(name string, rate float64, of Row, goals []Goal, figures ...*Figure) {
		figures = slices.DeleteFunc(figures, func(f *Figure) bool { return f == nil })
		if len(figures) == 0 {
			return
		}
		row := Row{Name: name, X: rate, What: of.What, Where: of.Where, Unit: of.Unit, Done: of.Done, Repeated: of.Repeated, Ours: *figures[0]}
		for _, f := range figures[1:] {
			row.Beside = append(row.Beside, *f)
		}
		row.sum(goals...)
		rows = append(rows, row)
	}
	for _, of := range all {
		for _, rate := range replayRates {
			var figures []*Figure
			for _, f := range replayFleets {
				if g := cellFigure(cells, of, replayCell{fleet: f, policy: replayPolicies[0], rate: rate}); g != nil {
					g.Of = f.name
					figures = append(figures, g)
				}
			}
			if len(figures) > 0 {
				add(fmt.Sprintf("%g/s, %s", rate, figures[0].Of), rate, of, nil, figures...)
			}
		}
	}
	for _, f := range replayFleets {
		for _, of := range all {
			var figures []*Figure
			for _, c := range cells {
				if c.fleet != f || c.rate != replayMiddle {
					continue
				}
				if g := cellFigure(cells, of, c); g != nil {
					if g.Of = c.policy; c.peer != nil {
						g.Of = c.peer.of + ", round robin"
					}
					figures = append(figures, g)
				}
			}
			var goals []Goal
			if of.What == "goodput" && f.prefill > 0 {
				goals = []Goal{{Beside: bestPeer, Times: 1, AtLeast: true}}
			}
			add(fmt.Sprintf("%s, least_load, %g/s", f.name, replayMiddle), 0, of, goals, figures...)
		}
	}
	return rows
}

// crossover says which fleet is best at which rate.
func crossover(cells []replayCell, all []Row) []string {
	var notes []string
	for _, of := range all {
		most := of.What == "goodput" || of.What == "prefix hits"
		if !most && of.What != "TTFT p99" && of.What != "ITL p99" {
			continue
		}
		var best []string
		for _, rate := range replayRates {
			name, value := "", 0.0
			for _, f := range replayFleets {
				if g := cellFigure(cells, of, replayCell{fleet: f, policy: replayPolicies[0], rate: rate}); g != nil && g.Cannot == "" {
					if m := spread(g.Rounds).Median; name == "" || (m > value) == most {
						name, value = f.name, m
					}
				}
			}
			if name != "" {
				best = append(best, fmt.Sprintf("%g/s %s (%.3g)", rate, name, value))
			}
		}
		notes = append(notes, fmt.Sprintf("Best %s, %s: %s.", of.What, of.Unit, strings.Join(best, ", ")))
	}
	return notes
}
