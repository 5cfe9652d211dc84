package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Config says how to measure.
type Config struct {
	Binary string        // pdrouter itself: gateway, floor, fakes and engines are processes of it
	Peers  string        // the folder in which the peers are installed; a peer that is not there says so
	Rounds int           // rounds of each contender a row
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
	run   func(context.Context, *Run) error
}

// Run is a suite under way.
type Run struct {
	Config
	report *Report
	out    io.Writer
}

// Suites are all, in the order in which they run.
func Suites() []Suite {
	return slices.Concat(overheadSuites(), streamSuites(), modelledSuites(), planeSuites(), pairSuites(), []Suite{stockSuite(), planeVLLMSuite(), choiceSuite(), prefixSuite(), restSuite(), redisSuite(), faultSuite(), metadataSuite(), authSuite()})
}

// Choose returns the suites of the given names in their order; a name such as "overhead" is all that begin with it and a
// slash. No name is all.
func Choose(names []string) ([]Suite, error) {
	if len(names) == 0 {
		return Suites(), nil
	}
	var chosen []Suite
	unknown := slices.Clone(names)
	for _, s := range Suites() {
		if i := slices.IndexFunc(names, func(n string) bool { return s.Name == n || strings.HasPrefix(s.Name, n+"/") }); i >= 0 {
			chosen = append(chosen, s)
			unknown = slices.DeleteFunc(unknown, func(n string) bool { return s.Name == n || strings.HasPrefix(s.Name, n+"/") })
		}
	}
	if len(unknown) > 0 {
		var all []string
		for _, s := range Suites() {
			all = append(all, s.Name)
		}
		return nil, fmt.Errorf("bench: %q is no suite; want one of %s", unknown[0], strings.Join(all, ", "))
	}
	return chosen, nil
}

// Measure runs the suite. It prints its progress and a table to out.
func (s Suite) Measure(ctx context.Context, cfg Config, out io.Writer) (*Report, error) {
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	if canPin() {
		if err := pinSelf(ctx, listOf(cpus)); err != nil { // the suite before may have bound this process to one
			return nil, err
		}
	}
	p := progressOn(out, s.Name)
	r := &Run{Config: cfg, out: p, report: &Report{Suite: s.Name, Date: time.Now().UTC().Format(time.DateOnly), Machine: machine(len(cpus)), Versions: versions()}}
	r.rounds(cfg.Rounds)
	fmt.Fprintf(out, "%s: %s\n", s.Name, s.Brief)
	p.prepares()
	err = s.run(ctx, r)
	p.clear()
	if err != nil {
		return nil, err
	}
	if len(r.report.Rows) == 0 {
		why := r.report.Notes
		if len(why) == 0 {
			why = []string{fmt.Sprintf("no row of it contains %q", cfg.Only)}
		}
		fmt.Fprintf(out, "  %s\n\n", strings.Join(why, "\n  "))
		return r.report, nil
	}
	fmt.Fprintln(out)
	r.report.table(out)
	fmt.Fprintln(out)
	return r.report, nil
}

// rounds has each contender measured n times.
func (r *Run) rounds(n int) {
	r.Rounds = n
	r.report.Settings = fmt.Sprintf("%d rounds of each, in turns", n)
}

// wants reports whether a row is to be measured.
func (r *Run) wants(name string) bool { return hasWords(name, r.Only) }

// contest measures a contest and adds its rows.
func (r *Run) contest(ctx context.Context, c contest) error {
	if !r.wants(c.name) {
		return nil
	}
	rows, err := c.watched().measure(ctx, r.Config, r.out)
	r.report.Rows = append(r.report.Rows, rows...)
	return err
}

// firstLine is s until its first line ends, and not much of it.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 160 {
		s = strings.ToValidUTF8(s[:160], "") + "…"
	}
	return s
}
