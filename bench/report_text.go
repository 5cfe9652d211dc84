package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table prints the rows for people at a terminal.
func (r *Report) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(r.head(), "\t"))
	for _, row := range r.Rows {
		for _, line := range r.lines(row, Spread.plain) {
			fmt.Fprintln(w, strings.Join(line, "\t"))
		}
	}
	_ = w.Flush() // to a terminal; a lost table shows
	fmt.Fprintf(out, "smallest–median–largest of the rounds; the ratio is pdrouter's over the other, round by round; %s\n", r.Settings)
	for _, n := range slices.Concat(r.Notes, r.Found) {
		fmt.Fprintln(out, n)
	}
}

// Markdown is the report as a page of docs/measurements.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", r.Suite, r.About)
	for _, n := range r.Found {
		fmt.Fprintf(&b, "%s\n\n", n)
	}
	fmt.Fprintf(&b, "- Command: `%s`\n- %s\n- %s\n- %d CPUs (%s), %s of memory, %s\n\n", r.Command, r.Settings, r.Versions, r.Machine.CPUs, r.Machine.Model, r.Machine.Memory, r.Machine.Kernel)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(r.head(), " | "), strings.Repeat(" --- |", len(r.head())))
	for _, row := range r.Rows {
		for _, line := range r.lines(row, Spread.bold) {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
		}
	}
	b.WriteString("\nFigures are smallest–median–largest of the rounds; the ratio is pdrouter's figure over the other's, the median of the rounds' ratios with the smallest and the largest.\n")
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	for _, p := range r.plots() {
		fmt.Fprintf(&b, "\n![%s](%s-%s.svg)\n", p.Title, r.file(), p.Name)
	}
	return b.String()
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
	names = append(names, "unit", us, "beside it", "figure", "ratio", "to reach", "reached")
	if where {
		names = append(names, "where")
	}
	if repeated {
		names = append(names, "rounds repeated")
	}
	return names
}

// lines are a row's: one for each that stands beside pdrouter and one for each goal, side by side.
func (r *Report) lines(row Row, ratio func(Spread) string) [][]string {
	what, where, repeated := r.columns()
	lines := make([][]string, max(1, len(row.Beside), len(row.Goals)))
	for i := range lines {
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
		if i < len(row.Beside) {
			beside = row.Beside[i].cells(ratio)
		}
		var goal Reached
		if i < len(row.Goals) {
			goal = row.Goals[i]
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
func (f Figure) cells(ratio func(Spread) string) [3]string {
	if f.Cannot != "" {
		return [3]string{f.Of, f.Cannot, ""}
	}
	if f.Ratio == nil {
		return [3]string{f.Of, f.String(), ""}
	}
	return [3]string{f.Of, f.String(), ratio(*f.Ratio)}
}

// String is the spread as smallest–middle–largest, with as many digits as say something.
func (s Spread) String() string {
	digits := 0
	switch size := math.Abs(s.Median); {
	case size < 10:
		digits = 2
	case size < 1000:
		digits = 1
	}
	return fmt.Sprintf("%.*f–%.*f–%.*f", digits, s.Min, digits, s.Median, digits, s.Max)
}

func (s Spread) plain() string { return fmt.Sprintf("×%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max) }
func (s Spread) bold() string  { return fmt.Sprintf("**%.2f** (%.2f–%.2f)", s.Median, s.Min, s.Max) }
