package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table prints the rows for people at a terminal.
func (r *Report) Table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(r.head(), "\t"))
	for _, row := range r.Rows {
		for _, line := range r.lines(row) {
			fmt.Fprintln(w, strings.Join(line, "\t"))
		}
	}
	_ = w.Flush() // to a terminal; a lost table shows
	fmt.Fprintf(out, "smallest–median–largest of the rounds; the ratio is pdrouter's over the other, round by round; %s\n", r.Settings)
	for _, n := range slices.Concat(r.Notes, r.Found) {
		fmt.Fprintln(out, n)
	}
}

// columns are those that not every suite has.
func (r *Report) columns() (what, where, repeated bool) {
	return r.has(func(x Row) bool { return x.What != "" }), r.has(func(x Row) bool { return x.Where != "" }), r.has(func(x Row) bool { return x.Repeated > 0 })
}

// head names the columns.
func (r *Report) head() []string {
	names := []string{"row"}
	what, where, repeated := r.columns()
	if what {
		names = append(names, "of it")
	}
	names = append(names, "unit", Us, "beside it", "figure", "ratio", "to reach", "reached")
	if where {
		names = append(names, "where")
	}
	if repeated {
		names = append(names, "rounds repeated")
	}
	return names
}

// line is what stands beside pdrouter in a table's line, and the goal that is held against it: an index of the row's, -1 is none.
type line struct{ beside, goal int }

// pairUp gives each that stands beside pdrouter a line, and each goal that of whom it is held against, or one of its own.
func (r Row) pairUp() []line {
	var lines []line
	for i := range r.Beside {
		lines = append(lines, line{i, -1})
	}
	for i, g := range r.Goals {
		at := slices.IndexFunc(lines, func(l line) bool { return l.goal < 0 && l.beside >= 0 && r.Beside[l.beside].Of == g.Beside })
		if at < 0 {
			at, lines = len(lines), append(lines, line{-1, -1})
		}
		lines[at].goal = i
	}
	if lines == nil {
		lines = []line{{-1, -1}}
	}
	return lines
}

// lines are a row's.
func (r *Report) lines(row Row) [][]string {
	what, where, repeated := r.columns()
	pairs := row.pairUp()
	lines := make([][]string, len(pairs))
	for i, pair := range pairs {
		first := func(s string) string {
			if i > 0 {
				return ""
			}
			return s
		}
		cells := []string{first(row.Name)}
		if what {
			cells = append(cells, first(row.What))
		}
		cells = append(cells, first(row.Unit), first(row.Ours.String()))
		beside := [3]string{}
		if pair.beside >= 0 {
			beside = row.Beside[pair.beside].cells()
		}
		var goal Reached
		if pair.goal >= 0 {
			goal = row.Goals[pair.goal]
		}
		cells = append(cells, beside[0], beside[1], beside[2], goal.Goal, goal.Met)
		if where {
			cells = append(cells, first(row.Where))
		}
		if repeated {
			cells = append(cells, first(strconv.Itoa(row.Repeated)))
		}
		lines[i] = cells
	}
	return lines
}

// cells are the name, the figure and the ratio of what stands beside pdrouter.
func (f Figure) cells() [3]string {
	if f.Cannot != "" {
		return [3]string{f.Of, f.Cannot, ""}
	}
	if f.Ratio == nil {
		return [3]string{f.Of, f.String(), ""}
	}
	return [3]string{f.Of, f.String(), f.Ratio.Times()}
}

// String is the spread as smallest–middle–largest, with as many digits as say something.
func (s Spread) String() string {
	digits := s.digits()
	return fmt.Sprintf("%.*f–%.*f–%.*f", digits, s.Min, digits, s.Median, digits, s.Max)
}

// digits is how many behind the point say something of the median.
func (s Spread) digits() int {
	switch size := math.Abs(s.Median); {
	case size == 0:
		return 0
	case size < 0.1:
		return 4
	case size < 10:
		return 2
	case size < 1000:
		return 1
	}
	return 0
}

// Times is the spread of a ratio: ×median (smallest–largest), with two digits after the point or more.
func (s Spread) Times() string {
	digits := max(2, s.digits())
	return fmt.Sprintf("×%.*f (%.*f–%.*f)", digits, s.Median, digits, s.Min, digits, s.Max)
}
