package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"pdrouter/bench/report"
)

// Ratios is the table of the suite's rows: pdrouter's figure, its ratio to each that stands beside it, and the aims.
func (s suite) Ratios() string {
	var b strings.Builder
	b.WriteString("| row | figure | pdrouter | beside it, and pdrouter's ratio to it | aim, and whether it is reached |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range s.Report.Rows {
		name := row.Name
		if row.Where != "" {
			name += ", " + row.Where
		}
		ours := row.Ours.String() + " " + row.Unit
		if row.Ours.Of != "pdrouter" {
			ours = row.Ours.Of + ": " + ours
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, row.What, ours, beside(row), aims(row))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// beside lists what stands beside pdrouter in a row.
func beside(row report.Row) string {
	var all []string
	for _, f := range row.Beside {
		switch {
		case f.Cannot != "":
		case f.Ratio == nil:
			all = append(all, f.Of+" "+number(f.Median))
		default:
			all = append(all, fmt.Sprintf("%s %s: %s", f.Of, number(f.Median), f.Ratio.Times()))
		}
	}
	return strings.Join(all, "; ")
}

// aims lists those of a row.
func aims(row report.Row) string {
	var all []string
	for _, g := range row.Goals {
		reached := g.Met
		if reached == "" {
			reached = "nothing to compare with"
		}
		all = append(all, g.Goal+": "+reached)
	}
	return strings.Join(all, "; ")
}

// number writes a figure with three digits, or all of those before the point.
func number(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
