package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"pdrouter/bench"
)

// runBench measures. `bench fake MODE`, `bench floor PREFILL DECODE` and `bench rank` are the processes that it starts
// itself.
func runBench(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "fake":
		return bench.ServeFake(ctx, args[1], out)
	case len(args) == 3 && args[0] == "floor":
		return bench.ServeFloor(ctx, args[1], args[2], out)
	case len(args) == 1 && args[0] == "rank":
		return bench.ServePlane(ctx, os.Stdin, out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, "usage: pdrouter bench [flags] [SUITE…]\n\noverhead: the gateway's CPU time per two-leg request beside a bare proxy, in front of fake engines.\nplane:    pushes of KV blocks between two processes beside this machine's limits.\nmetadata: the local copy of 1,000 engines' records, and its way through a real Redis.\nauth:     what it costs to verify a token or a key, and to count a client's limits.\nWithout a name all of them run.\n\n")
		flags.PrintDefaults()
	}
	cfg := bench.Config{}
	flags.IntVar(&cfg.Pairs, "pairs", 6, "`rounds` of each target; at least 1, and 6 for a figure worth quoting")
	flags.DurationVar(&cfg.Round, "round", 2*time.Second, "how long a round lasts")
	flags.Float64Var(&cfg.Others, "others", 0.1, "`CPUs` that may be busy with something else; a busier round is repeated")
	flags.IntVar(&cfg.Refuse, "refuse", 40, "`rounds` of a row that may be repeated before the run is given up")
	flags.StringVar(&cfg.Log, "log", "info", "the gateway's log `level`; info is a line a request")
	flags.StringVar(&cfg.Only, "only", "", "measure only the rows whose name contains this `text`, for example \"pull c=32\"")
	dir := flags.String("o", "", "also write the report to this `folder`, as Markdown and JSON; docs/measurements is the repository's")
	if err := flags.Parse(args); err != nil {
		return err
	}
	suites := flags.Args()
	if len(suites) == 0 {
		suites = benchSuites()
	}
	for _, name := range suites {
		if !slices.Contains(benchSuites(), name) {
			return fmt.Errorf("bench: %q is no suite; want one of %s", name, strings.Join(benchSuites(), ", "))
		}
	}
	if cfg.Pairs < 1 || cfg.Round <= 0 {
		return errors.New("bench: -pairs and -round must be more than 0")
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	cfg.Binary = binary
	command := strings.Join(append([]string{"pdrouter", "bench"}, args...), " ")
	for _, name := range suites {
		if err := benchSuite(ctx, name, command, cfg, *dir, out); err != nil {
			return err
		}
	}
	return nil
}

// benchSuites are the names of all suites, in the order in which they run.
func benchSuites() []string { return []string{"overhead", "plane", "metadata", "auth"} }

// benchSuite runs one suite and writes its report into dir, unless that is "".
func benchSuite(ctx context.Context, name, command string, cfg bench.Config, dir string, out io.Writer) error {
	beside := bench.BesideConfig{Rounds: 2 * cfg.Pairs, Only: cfg.Only}
	run := map[string]func() (*bench.BesideReport, error){
		"plane":    func() (*bench.BesideReport, error) { return bench.Plane(ctx, cfg.Binary, beside, out) },
		"metadata": func() (*bench.BesideReport, error) { return bench.Metadata(ctx, beside, out) },
		"auth":     func() (*bench.BesideReport, error) { return bench.Auth(ctx, beside, out) },
	}[name]
	var write func(string) error
	if run == nil {
		report, err := bench.Overhead(ctx, cfg, out)
		if err != nil {
			return err
		}
		report.Command, write = command, report.Write
	} else {
		report, err := run()
		if err != nil {
			return err
		}
		report.Command, write = command, report.Write
	}
	if dir == "" {
		return nil
	}
	return write(dir)
}
