package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pdrouter/bench"
)

// runBench measures. `bench fake MODE ROLE`, `bench floor MODE PREFILL DECODE` and `bench rank` are the processes that it
// starts itself.
func runBench(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && (args[0] == "fake" || args[0] == "floor" || args[0] == "engines") {
		collectSeldom() // as the gateway does, so that its pace is no advantage of it
	}
	switch {
	case len(args) == 3 && args[0] == "fake":
		return bench.ServeFake(ctx, args[1], args[2], out)
	case len(args) == 4 && args[0] == "floor":
		return bench.ServeFloor(ctx, args[1], args[2], args[3], out)
	case len(args) > 0 && args[0] == "engines":
		return bench.ServeEngines(ctx, args[1:], out)
	case len(args) == 1 && args[0] == "rank":
		return bench.ServePlane(ctx, os.Stdin, out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, "usage: pdrouter bench [flags] [SUITE…]\n\n")
		for _, s := range bench.Suites() {
			fmt.Fprintf(out, "  %-20s %s\n", s.Name, s.Brief)
		}
		fmt.Fprint(out, "\n\"overhead\" is all suites that begin with it. Without a name all of them run.\n\n")
		flags.PrintDefaults()
	}
	cfg := bench.Config{}
	flags.IntVar(&cfg.Rounds, "rounds", 6, "`rounds` of each contender; at least 1, and 6 for a figure worth quoting")
	flags.DurationVar(&cfg.Round, "round", 2*time.Second, "how long a round lasts")
	flags.Float64Var(&cfg.Others, "others", 0.1, "`CPUs` that may be busy with something else; a busier round is repeated")
	flags.IntVar(&cfg.Refuse, "refuse", 40, "`rounds` of a row that may be repeated before the run is given up")
	flags.StringVar(&cfg.Log, "log", "info", "the gateway's log `level`; info is a line a request")
	flags.StringVar(&cfg.Only, "only", "", "measure only the rows whose name contains this `text` in whole words, for example \"pull c=32\"")
	flags.StringVar(&cfg.Peers, "peers", ".deps/peers", "the `folder` in which `make peers` has installed other routers; those that are not there are left out")
	flags.StringVar(&cfg.Trace, "trace", "", "replay: a `file` in Mooncake's format; without one a workload of the same shape is made")
	flags.Float64Var(&cfg.Scale, "scale", 1, "replay: how much `faster` than the trace")
	dir := flags.String("o", "", "also write the reports to this `folder`, as Markdown, JSON and SVG; docs/measurements is the repository's")
	if err := flags.Parse(args); err != nil {
		return err
	}
	suites, err := bench.Choose(flags.Args())
	if err != nil {
		return err
	}
	if cfg.Rounds < 1 || cfg.Round <= 0 || cfg.Scale <= 0 {
		return errors.New("bench: -rounds, -round and -scale must be more than 0")
	}
	if cfg.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var failed error
	for _, s := range suites {
		report, err := s.Measure(ctx, cfg, out)
		if err == nil && *dir != "" && len(report.Rows) > 0 {
			report.Command = benchCommand(args)
			err = report.Write(*dir)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // the others are worth having all the same
			fmt.Fprintf(out, "%s: %v\n\n", s.Name, err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.Name, err))
		}
	}
	return failed
}

// benchCommand is the command as a report shows it: it names no folder of the machine that it ran on.
func benchCommand(args []string) string {
	shown := []string{"pdrouter", "bench"}
	for _, a := range args {
		if filepath.IsAbs(a) || strings.HasPrefix(a, "..") {
			a = filepath.Base(a)
		}
		shown = append(shown, a)
	}
	return strings.Join(shown, " ")
}
