package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"pdrouter/bench"
)

// runBench measures. `bench fake MODE` and `bench floor PREFILL DECODE` are the processes that it starts itself.
func runBench(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "fake":
		return bench.ServeFake(ctx, args[1], out)
	case len(args) == 3 && args[0] == "floor":
		return bench.ServeFloor(ctx, args[1], args[2], out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, "usage: pdrouter bench [flags] [overhead]\n\nMeasures the gateway's CPU time per two-leg request beside a bare proxy, in one run, in front of fake engines.\n\n")
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
	if flags.NArg() > 1 || flags.NArg() == 1 && flags.Arg(0) != "overhead" {
		return fmt.Errorf("bench: %q is no suite; want overhead", strings.Join(flags.Args(), " "))
	}
	if cfg.Pairs < 1 || cfg.Round <= 0 {
		return errors.New("bench: -pairs and -round must be more than 0")
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	cfg.Binary = binary
	report, err := bench.Overhead(ctx, cfg, out)
	if err != nil {
		return err
	}
	if report.Command = strings.Join(append([]string{"pdrouter", "bench"}, args...), " "); *dir == "" {
		return nil
	}
	return report.Write(*dir)
}
