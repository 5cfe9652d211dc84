package replay

import (
	"fmt"
	"slices"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
)

// cellFigure is a cell's figure of a metric's row, which has all cells; nil if it was not measured.
func cellFigure(cells []replayCell, row report.Row, cell replayCell) *report.Figure {
	for _, f := range append([]report.Figure{row.Ours}, row.Beside...) {
		if f.Of == cell.name() && slices.ContainsFunc(cells, func(c replayCell) bool { return c.name() == f.Of }) {
			return &f
		}
	}
	return nil
}

// replaysAlone replays the loads of pdrouter's cells in the engines' own time. The figures are by the cells'
// names, and as many as replayMetrics.
func replaysAlone(cells []replayCell, loads map[float64][]load.Request) (map[string][]float64, error) {
	c, err := sim.CostsOf(replayCosts)
	if err != nil {
		return nil, err
	}
	figures := map[string][]float64{}
	for _, cell := range cells {
		if cell.peer != nil || cell.pull {
			continue
		}
		sum, got, err := virtually(cell.fleet, c, sim.ChunkBudget, cell.policy, loads[cell.rate])
		if err != nil {
			return nil, err
		}
		for _, m := range replayMetrics {
			figures[cell.name()] = append(figures[cell.name()], m.of(sum, got))
		}
	}
	return figures, nil
}

// replayGroups are the figures of a row, and those of one more in which the policy prefix is held against the others.
func replayGroups(figures []report.Figure) [][]report.Figure {
	if len(figures) == 0 {
		return nil
	}
	at := slices.IndexFunc(figures, func(f report.Figure) bool { return f.Of == ByPrefix })
	if at < 0 {
		return [][]report.Figure{figures}
	}
	others := slices.Delete(slices.Clone(figures), at, at+1)
	groups := [][]report.Figure{slices.Concat(figures[at:at+1], others)}
	if len(others) > 0 {
		groups = append([][]report.Figure{others}, groups...)
	}
	return groups
}

// replayRows makes rows of all cells' figures: for each fleet and rate, the policies, peers and the engines alone beside each other.
func replayRows(cells []replayCell, all []report.Row, alone map[string][]float64) []report.Row {
	var rows []report.Row
	var lines []string
	for _, c := range cells {
		if !slices.Contains(lines, c.engines()) {
			lines = append(lines, c.engines())
		}
	}
	for _, engines := range lines {
		for _, rate := range replayRates {
			for k, of := range all {
				var figures []report.Figure
				var fleet replayFleet
				for _, c := range cells {
					if c.engines() != engines || c.rate != rate {
						continue
					}
					fleet = c.fleet
					if g := cellFigure(cells, of, c); g != nil {
						if g.Of = c.policy; c.peer != nil {
							g.Of = c.peer.Of + ", round robin"
						}
						figures = append(figures, *g)
					}
				}
				few := rate*replayWindow.Seconds() < harness.TailOf
				if few && replayMetricOf(of.What).tail {
					continue
				}
				for _, figures := range replayGroups(figures) {
					row := report.Row{Name: fmt.Sprintf("%s, %s, %g/s", engines, figures[0].Of, rate), What: of.What, Where: of.Where, Unit: of.Unit, Done: of.Done, Repeated: of.Repeated, Ours: figures[0], Beside: figures[1:]}
					var goals []report.Goal
					if of.What == "goodput" && slices.ContainsFunc(row.Beside, func(g report.Figure) bool { return g.Peer }) {
						goals = []report.Goal{{Beside: report.BestPeer, Times: 1, AtLeast: true}}
					}
					if figures[0].Of == ByPrefix {
						goals = append(goals, prefixGoals(row, fleet)...)
					}
					if values := alone[fmt.Sprintf("%s %s %g/s", engines, figures[0].Of, rate)]; values != nil && of.What != engineITL && of.What != lateMetric {
						row.Beside = append(row.Beside, report.Figure{Of: "engines alone", Rounds: slices.Repeat(values[k:k+1], len(row.Ours.Rounds))})
					}
					row.Sum(goals...)
					rows = append(rows, row)
				}
			}
		}
	}
	return rows
}
