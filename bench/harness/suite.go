package harness

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"pdrouter/bench/report"
)

// Config says how to measure.
type Config struct {
	Binary string        // pdrouter itself: gateway, baseline proxy, fakes and engines are processes of it
	Peers  string        // the folder in which the peers are installed; a peer that is not there says so
	Rounds int           // rounds of each system a row
	Round  time.Duration // of one measurement
	Others float64       // CPUs that may be busy with something else during a round
	Refuse int           // rounds of a row that may be repeated because of that
	Log    string        // the gateway's log level; info is a line a request, to the null device
	Only   string        // rows whose name contains it, in whole words; "" is all
	Trace  string        // replay: a file in Mooncake's format; "" makes a workload of the same shape
	Scale  float64       // replay: how much faster than the trace
}

// Suite is what is measured and reported together.
type Suite struct {
	Name  string // as it is asked for: "overhead/cpu-1k"
	Brief string // a line of the usage
	Run   func(context.Context, *Run) error
}

// Run is a suite under way.
type Run struct {
	Config
	Report *report.Report
	Out    io.Writer
}

// Measure runs the suite. It prints its progress and a table to out.
func (s Suite) Measure(ctx context.Context, cfg Config, out io.Writer) (*report.Report, error) {
	cpus, err := report.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	if CanPin() {
		if err := PinSelf(ctx, ListOf(cpus)); err != nil { // the suite before may have bound this process to one
			return nil, err
		}
	}
	p := progressOn(out, s.Name)
	r := &Run{Config: cfg, Out: p, Report: &report.Report{Suite: s.Name, Date: time.Now().UTC().Format(time.DateOnly), Machine: report.ReadMachine(len(cpus)), Versions: report.ReadVersions()}}
	r.SetRounds(cfg.Rounds)
	fmt.Fprintf(out, "%s: %s\n", s.Name, s.Brief)
	p.prepares()
	err = s.Run(ctx, r)
	p.clear()
	if err != nil {
		return nil, err
	}
	if len(r.Report.Rows) == 0 {
		why := r.Report.Notes
		if len(why) == 0 {
			why = []string{fmt.Sprintf("no row of it contains %q", cfg.Only)}
		}
		fmt.Fprintf(out, "  %s\n\n", strings.Join(why, "\n  "))
		return r.Report, nil
	}
	fmt.Fprintln(out)
	r.Report.Table(out)
	fmt.Fprintln(out)
	return r.Report, nil
}

// SetRounds has each system measured n times.
func (r *Run) SetRounds(n int) {
	r.Rounds = n
	r.Report.Settings = fmt.Sprintf("%d rounds of each, in turns", n)
}

// Wants reports whether a row is to be measured.
func (r *Run) Wants(name string) bool { return hasWords(name, r.Only) }

// Compare measures a comparison and adds its rows.
func (r *Run) Compare(ctx context.Context, c Comparison) error {
	if !r.Wants(c.Name) {
		return nil
	}
	rows, err := c.watched().Measure(ctx, r.Config, r.Out)
	r.Report.Rows = append(r.Report.Rows, rows...)
	return err
}

// FirstLine is s until its first line ends, and not much of it.
func FirstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 160 {
		s = strings.ToValidUTF8(s[:160], "") + "…"
	}
	return s
}

// Open starts the processes of a comparison, and has the report name the versions of what runs beside pdrouter.
func (r *Run) Open(ctx context.Context, c Setup) (*Stage, error) {
	s, err := c.Open(ctx, r.Config)
	if err != nil {
		return nil, err
	}
	for i, x := range s.Targets {
		if s.Running[i] != nil {
			r.Names(x)
		}
	}
	return s, nil
}

// Names has the report name the version of a target.
func (r *Run) Names(x Target) {
	if x.version == nil {
		return
	}
	if v := x.version(); !slices.Contains(r.Report.Versions.Beside, v) {
		r.Report.Versions.Beside = append(r.Report.Versions.Beside, v)
	}
}
