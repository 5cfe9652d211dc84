package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// PlaneReport is the plane suite's result, with all one needs to repeat it.
type PlaneReport struct {
	Suite    string     `json:"suite"`
	Command  string     `json:"command"`
	Settings string     `json:"settings"`
	Versions Versions   `json:"versions"`
	Machine  Machine    `json:"machine"`
	Rows     []PlaneRow `json:"rows"`
}

func (r PlaneRow) met() string {
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
func (r *PlaneReport) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tunit\tfigure\tbeside it\tlimit\tratio\tto reach\treached\tpath")
	for _, x := range r.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.Unit, x.Figure.fine(), x.Beside, x.Limit.fine(), x.Ratio.fine(), x.Goal, x.met(), x.Path)
	}
	_ = w.Flush() // to a terminal; a lost table shows
	fmt.Fprintf(out, "smallest–median–largest of the rounds; %s\n", r.Settings)
}

// Markdown is the report as a page of docs/measurements.
func (r *PlaneReport) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", r.Suite)
	b.WriteString("The data plane between two processes of one machine: prefill in one, decode in the other, each with one rank. Beside each figure stands a limit of the same machine, measured in turns with it in the same run. " +
		"A run is void unless every transfer was released and sent with all its bytes, a word of every page that came was compared, and the bytes were seen to take the path that the row names.\n\n" +
		"- **bandwidth**: a transfer of 1,024 blocks of 64 KiB whose ids are shuffled on both sides, from the registration until the completion is seen. Plain copy: `copy` of the same blocks in one process. Bare socket loop: one connection, one `Write`, read whole by another process into the same memory, one byte back.\n" +
		"- **register**: 16 blocks of 32 KiB, the offer at hand, from the registration until the agent has seen the completion; medians of rounds of 200.\n" +
		"- **release**: from the moment at which the transport hands the completion over until the engine's goroutine has decode released. Bare channel: one goroutine wakes another.\n" +
		"- **outstanding**: as register, with blocks of 4 KiB, while 10,000 other transfers are outstanding (4,000 registered without an offer, the others offered and queued on decode), beside 100.\n" +
		"- **idle**: CPU time of the decode process when nothing is outstanding, and when a bare NIXL agent with NIXL's progress thread lives in it too.\n\n")
	fmt.Fprintf(&b, "- Command: `%s`\n- %s\n- pdrouter %s, %s\n- %d CPUs (%s), %s of memory, %s\n\n", r.Command, r.Settings, r.Versions.Pdrouter, r.Versions.Go, r.Machine.CPUs, r.Machine.Model, r.Machine.Memory, r.Machine.Kernel)
	b.WriteString("| row | unit | figure | beside it | limit | ratio | to reach | reached | path |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, x := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | **%.2f** (%.2f–%.2f) | %s | %s | %s |\n", x.Name, x.Unit, x.Figure.fine(), x.Beside, x.Limit.fine(),
			x.Ratio.Median, x.Ratio.Min, x.Ratio.Max, x.Goal, x.met(), x.Path)
	}
	b.WriteString("\nFigures are smallest–median–largest of the rounds; the ratio is the median of the rounds' ratios, with the smallest and the largest.\n")
	return b.String()
}

// Write puts the report into dir as Markdown and as JSON.
func (r *PlaneReport) Write(dir string) error { return writeReport(dir, r.Suite, r, r.Markdown()) }
