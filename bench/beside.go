package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// BesideRow is one line of a BesideReport: a figure, what stands beside it in the same run, and what it is to reach.
type BesideRow struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Figure Spread `json:"figure"`
	Beside string `json:"beside"` // what the limit is
	Limit  Spread `json:"limit"`
	Ratio  Spread `json:"ratio"` // figure over limit, round by round
	Goal   string `json:"goal"`
	Met    bool   `json:"met"`
	Path   string `json:"path,omitempty"` // plane: which way the bytes were seen to take
}

// sum fills in the figures of a row's rounds and what stood beside each of them.
func (r *BesideRow) sum(got, limits []float64) {
	r.Figure, r.Limit, r.Ratio = spread(got), spread(limits), ratios(limits, got)
}

// BesideReport is the result of a suite whose rows have different units, with all one needs to repeat it.
type BesideReport struct {
	Suite    string      `json:"suite"`
	About    string      `json:"-"` // Markdown: what is measured and how, row by row
	Command  string      `json:"command"`
	Settings string      `json:"settings"`
	Versions Versions    `json:"versions"`
	Machine  Machine     `json:"machine"`
	Rows     []BesideRow `json:"rows"`
}

func (r BesideRow) met() string {
	switch {
	case r.Goal == "–":
		return ""
	case r.Met:
		return "yes"
	}
	return "no"
}

func (s Spread) fine() string { return fmt.Sprintf("%.2f–%.2f–%.2f", s.Min, s.Median, s.Max) }

// table prints the rows for people at a terminal.
func (r *BesideReport) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(r.head(), "\t"))
	for _, x := range r.Rows {
		fmt.Fprintln(w, strings.Join(r.cells(x, x.Ratio.fine()), "\t"))
	}
	_ = w.Flush() // to a terminal; a lost table shows
	fmt.Fprintf(out, "smallest–median–largest of the rounds; %s\n", r.Settings)
}

// head names the columns. Only a suite whose rows can take several paths has one for these.
func (r *BesideReport) head() []string {
	names := []string{"row", "unit", "figure", "beside it", "limit", "ratio", "to reach", "reached"}
	if r.paths() {
		names = append(names, "path")
	}
	return names
}

func (r *BesideReport) paths() bool {
	return slices.ContainsFunc(r.Rows, func(x BesideRow) bool { return x.Path != "" })
}

func (r *BesideReport) cells(x BesideRow, ratio string) []string {
	cells := []string{x.Name, x.Unit, x.Figure.fine(), x.Beside, x.Limit.fine(), ratio, x.Goal, x.met()}
	if r.paths() {
		cells = append(cells, x.Path)
	}
	return cells
}

// Markdown is the report as a page of docs/measurements.
func (r *BesideReport) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", r.Suite, r.About)
	fmt.Fprintf(&b, "- Command: `%s`\n- %s\n- pdrouter %s, %s\n- %d CPUs (%s), %s of memory, %s\n\n", r.Command, r.Settings, r.Versions.Pdrouter, r.Versions.Go, r.Machine.CPUs, r.Machine.Model, r.Machine.Memory, r.Machine.Kernel)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(r.head(), " | "), strings.Repeat(" --- |", len(r.head())))
	for _, x := range r.Rows {
		ratio := fmt.Sprintf("**%.2f** (%.2f–%.2f)", x.Ratio.Median, x.Ratio.Min, x.Ratio.Max)
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r.cells(x, ratio), " | "))
	}
	b.WriteString("\nFigures are smallest–median–largest of the rounds; the ratio is the median of the rounds' ratios, with the smallest and the largest.\n")
	return b.String()
}

// Write puts the report into dir as Markdown and as JSON.
func (r *BesideReport) Write(dir string) error { return writeReport(dir, r.Suite, r, r.Markdown()) }
