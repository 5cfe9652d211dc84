package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// Report is one suite's result, with all one needs to repeat it.
type Report struct {
	Suite    string   `json:"suite"`
	Command  string   `json:"command"`
	Settings string   `json:"settings"`
	Log      string   `json:"gateway_log_level"`
	Versions Versions `json:"versions"`
	Machine  Machine  `json:"machine"`
	Rows     []Row    `json:"rows"`
}

// String is the spread as smallest–middle–largest.
func (s Spread) String() string { return fmt.Sprintf("%.1f–%.1f–%.1f", s.Min, s.Median, s.Max) }

// table prints the rows for people at a terminal.
func (r *Report) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "request\tfloor µs\tgateway µs\tgateway/floor\tfloor req/s\tgateway req/s\trequests\trepeated\t")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f–%.2f–%.2f\t%.0f\t%.0f\t%d\t%d\t\n", row.Name, row.Floor.MicrosPerRequest, row.Gateway.MicrosPerRequest,
			row.Ratio.Min, row.Ratio.Median, row.Ratio.Max, row.Floor.PerSecond.Median, row.Gateway.PerSecond.Median, row.Floor.Requests+row.Gateway.Requests, row.Refused)
	}
	_ = w.Flush() // to a terminal; a lost table shows
	fmt.Fprintf(out, "smallest–median–largest of the rounds; %s; gateway log level %s\n", r.Settings, r.Log)
}

// Markdown is the report as a page of docs/measurements.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", r.Suite)
	fmt.Fprintf(&b, "CPU time that one two-leg request of 1 KB costs the gateway, in µs, beside the floor: a bare fasthttp proxy (`bench/floor.go`) that makes the same three exchanges by joining bytes. Both stand in front of the same fake engines, which answer at once, and are measured in turns (A B B A …) in one run. CPU time is the sum of `/proc/PID/task/*/schedstat` of the process, divided by the requests the client completed. A round is repeated when anything else used more CPU than `-others` allows (0.1 of a CPU unless the command says otherwise), and the run is void unless every answer was right and the engines counted two legs for each.\n\n")
	fmt.Fprintf(&b, "- Command: `%s`\n- %s; gateway log level %s\n- pdrouter %s, %s, fasthttp %s\n- %d CPUs (%s), %s of memory, %s\n\n", r.Command, r.Settings, r.Log, r.Versions.Pdrouter, r.Versions.Go, r.Versions.Fasthttp, r.Machine.CPUs, r.Machine.Model, r.Machine.Memory, r.Machine.Kernel)
	fmt.Fprintf(&b, "| request | where | floor µs | gateway µs | gateway / floor | floor req/s | gateway req/s | requests | rounds repeated |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | **%.2f** (%.2f–%.2f) | %.0f | %.0f | %d | %d |\n", row.Name, row.View, row.Floor.MicrosPerRequest, row.Gateway.MicrosPerRequest,
			row.Ratio.Median, row.Ratio.Min, row.Ratio.Max, row.Floor.PerSecond.Median, row.Gateway.PerSecond.Median, row.Floor.Requests+row.Gateway.Requests, row.Refused)
	}
	fmt.Fprintf(&b, "\nFigures are smallest–median–largest of the rounds; the ratio is the median of the ratios of the pairs, with the smallest and the largest.\n")
	return b.String()
}

// Write puts the report into dir as Markdown and as JSON.
func (r *Report) Write(dir string) error { return writeReport(dir, r.Suite, r, r.Markdown()) }

// writeReport writes a suite's result as NAME.json and NAME.md.
func writeReport(dir, suite string, result any, markdown string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: %s: %w", suite, err)
	}
	name := filepath.Join(dir, strings.ReplaceAll(suite, "/", "-"))
	if err := os.WriteFile(name+".json", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := os.WriteFile(name+".md", []byte(markdown), 0o644); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
