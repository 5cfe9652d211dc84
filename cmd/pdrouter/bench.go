package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pdrouter/bench"
	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/sim"
	"pdrouter/bench/suites/plane"
	"pdrouter/internal/gcpace"
)

func benchCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "bench [SUITE…]", Short: "Measure the gateway beside a bare proxy and other routers, in the same run.",
		Long: benchAbout(), Args: cobra.ArbitraryArgs,
	}
	for _, s := range bench.Suites() {
		c.ValidArgs = append(c.ValidArgs, s.Name)
	}
	f := c.Flags()
	cfg := harness.Config{}
	f.IntVar(&cfg.Rounds, "rounds", 6, "`rounds` of each system; at least 1, and 6 for a figure worth quoting")
	f.DurationVar(&cfg.Round, "round", 2*time.Second, "how long a round lasts")
	f.Float64Var(&cfg.Others, "others", 0.1, "`CPUs` that may be busy with something else; a busier round is repeated")
	f.IntVar(&cfg.Refuse, "refuse", 40, "`rounds` of a row that may be repeated before the run is given up")
	f.StringVar(&cfg.Log, "log", "info", "the gateway's log `level`; info is a line a request")
	f.StringVar(&cfg.Only, "only", "", "measure only the rows whose name contains this `text` in whole words, for example \"pull c=32\"")
	f.StringVar(&cfg.Peers, "peers", ".deps/peers", "the `folder` in which \"make peers\" has installed other routers; those that are not there are left out")
	f.StringVar(&cfg.Trace, "trace", "", "replay: a `file` in Mooncake's format; without one a workload of the same shape is made")
	f.Float64Var(&cfg.Scale, "scale", 1, "replay: how many `times` faster than the trace")
	dir := f.StringP("out", "o", "", "also write the reports to this `folder`, as JSON; docs/measurements/data is the repository's")
	c.RunE = func(c *cobra.Command, names []string) error {
		suites, err := bench.Choose(names)
		if err != nil {
			return err
		}
		if cfg.Rounds < 1 || cfg.Round <= 0 || cfg.Scale <= 0 {
			return errors.New("bench: --rounds, --round and --scale must be more than 0")
		}
		if cfg.Binary, err = os.Executable(); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		return measure(c, suites, cfg, *dir, commandLine(f, names))
	}
	c.AddCommand(benchProcesses()...)
	return c
}

func benchAbout() string {
	var b strings.Builder
	b.WriteString("Measure suites, one after the other. \"overhead\" is all suites whose name begins with it. Without a name all of them run.\n\n")
	for _, s := range bench.Suites() {
		fmt.Fprintf(&b, "  %-20s %s\n", s.Name, s.Brief)
	}
	return b.String()
}

// measure runs the suites. One that fails does not stop the others.
func measure(c *cobra.Command, suites []harness.Suite, cfg harness.Config, dir, command string) error {
	var failed error
	for _, s := range suites {
		report, err := s.Measure(c.Context(), cfg, c.OutOrStdout())
		if err == nil && dir != "" && len(report.Rows) > 0 {
			report.Command = command
			err = report.Write(dir)
		}
		if err := c.Context().Err(); err != nil {
			return err
		}
		if err != nil {
			fmt.Fprintf(c.OutOrStdout(), "%s: %v\n\n", s.Name, err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.Name, err))
		}
	}
	return failed
}

// commandLine is the command as a report shows it: it names no folder of the machine that it ran on.
func commandLine(flags *pflag.FlagSet, names []string) string {
	shown := []string{"pdrouter bench"}
	flags.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if filepath.IsAbs(value) || strings.HasPrefix(value, "..") {
			value = filepath.Base(value)
		}
		if strings.Contains(value, " ") {
			value = fmt.Sprintf("%q", value)
		}
		shown = append(shown, "--"+f.Name+" "+value)
	})
	return strings.Join(append(shown, names...), " ")
}

// benchProcesses are the processes that bench starts itself.
func benchProcesses() []*cobra.Command {
	engine := &cobra.Command{Use: "fake MODE ROLE", Args: cobra.ExactArgs(2), RunE: func(c *cobra.Command, args []string) error {
		return fake.Serve(c.Context(), args[0], args[1], c.OutOrStdout())
	}}
	baseline := &cobra.Command{Use: "baseline MODE PREFILL DECODE", Args: cobra.ExactArgs(3), RunE: func(c *cobra.Command, args []string) error {
		return fake.ServeBaseline(c.Context(), args[0], args[1], args[2], c.OutOrStdout())
	}}
	engines := &cobra.Command{Use: "engines", DisableFlagParsing: true, RunE: func(c *cobra.Command, args []string) error {
		return sim.ServeArgs(c.Context(), args, c.OutOrStdout())
	}}
	rank := &cobra.Command{Use: "rank", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		return plane.Serve(c.Context(), c.InOrStdin(), c.OutOrStdout())
	}}
	// Their garbage is collected as seldom as the gateway's, so that this is no advantage of the gateway.
	for _, c := range []*cobra.Command{engine, baseline, engines} {
		c.PreRun = func(*cobra.Command, []string) { gcpace.Start() }
	}
	all := []*cobra.Command{engine, baseline, engines, rank}
	for _, c := range all {
		c.Hidden, c.Short = true, cmp.Or(c.Short, "a process of bench itself")
	}
	return all
}
