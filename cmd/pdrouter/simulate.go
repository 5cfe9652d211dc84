package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/bench/simulate"
	"pdrouter/internal/configfile"
)

// simulatedCosts are those of the modelled engines.
const simulatedCosts = "llama-3.3-70b-4xh100"

func simulateCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "simulate", Short: "Replay a trace on modelled engines with the gateway's own policies.", Args: cobra.NoArgs,
		Long: `Replay a trace on modelled engines (a 70B model on four H100 each) in their own time, with the gateway's own policies: how many requests keep
their objective, with the policy cost and beside what else the same engines could do. Nothing is sent anywhere, and the same command prints
the same figures on any machine.

  pdrouter simulate --rate 1.5,2
  pdrouter simulate -c pdrouter.yml --layout 2P2D --trace trace.jsonl

A trace is Mooncake's (a JSON object a line), Azure's (CSV with TIMESTAMP, ContextTokens, GeneratedTokens) or BurstGPT's (CSV with Timestamp,
Request tokens, Response tokens). Without --trace it is made: conversations in the shape of Mooncake's.`,
	}
	c.AddCommand(simulateConversationsCommand())
	f := c.Flags()
	config := f.StringP("config", "c", "", "a gateway's configuration `FILE`: its policy is replayed too, on --layout")
	trace := f.String("trace", "", "the trace `FILE`")
	layout := f.String("layout", "", "engines by role of the configuration's policy, such as 2P2D, 4D or 4E (either role); default: --engines of either role")
	engines := f.Int("engines", 4, "the `number` of engines")
	rates := f.Float64Slice("rate", nil, "`rates`, in requests a second, commas between; default: six for each mix, to more than the engines can do")
	f.Lookup("rate").DefValue = "" // pflag would print []
	mixes := f.StringSlice("mix", nil, "`names` of mixes, commas between: recorded, prompts/4 (prompts a quarter as long) or answers*4; default: all")
	seeds := f.Int("seeds", 10, "how many choices of the trace's sessions are replayed (1 to 1000)")
	window := f.Duration("window", 2*time.Minute, "the time of the engines in which requests come")
	ttft := f.Duration("ttft", 2*time.Second, "the objective: `time` to the first token")
	itl := f.Duration("itl", 50*time.Millisecond, "the objective: `time` between tokens, in the mean of an answer")
	queue := f.Bool("queue", false, "also the policy cost with requests that wait until engines have room, as with queue.by_objective")
	alone := f.Bool("alone", false, "leave the baselines out")
	output := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		bad := func(format string, args ...any) error {
			return usageError{fmt.Errorf(format, args...), c.CommandPath()}
		}
		switch {
		case *engines < 1 || *engines > 64:
			return bad("--engines %d; want 1 to 64", *engines)
		case *seeds < 1 || *seeds > 1000:
			return bad("--seeds %d; want 1 to 1000", *seeds)
		}
		for name, d := range map[string]time.Duration{"window": *window, "ttft": *ttft, "itl": *itl} {
			if d <= 0 {
				return bad("--%s %v; want more than 0", name, d)
			}
		}
		s := simulate.Sweep{Seeds: *seeds, Window: *window, SLO: load.SLO{Ttft: *ttft, Tpot: *itl}}
		var err error
		if s.Costs, err = sim.CostsOf(simulatedCosts); err != nil {
			return err
		}
		if s.Mixes, err = mixesOf(*mixes, *rates, *engines); err != nil {
			return bad("%w", err)
		}
		if s.Trace, err = readTrace(*trace, s.Mixes, *window); err != nil {
			return err
		}
		cost, err := simulate.Cost(*engines, s.SLO)
		if err != nil {
			return err
		}
		s.Systems = []simulate.System{cost}
		if *queue {
			with, err := simulate.Queued(*engines, s.SLO)
			if err != nil {
				return err
			}
			s.Systems = append(s.Systems, with)
		}
		if *config != "" {
			of := simulate.Layout{Either: *engines}
			if *layout != "" {
				if of, err = simulate.ParseLayout(*layout); err != nil {
					return bad("--%w", err)
				}
			}
			own, err := configfile.Load(*config)
			if err != nil {
				return err
			}
			s.Systems = append(s.Systems, simulate.System{Layout: of, Name: "configured", Policy: own.Routing})
		} else if *layout != "" {
			return bad("--layout is of the configuration's policy; want -c FILE beside it")
		}
		if !*alone {
			baselines, err := simulate.Baselines(*engines)
			if err != nil {
				return err
			}
			s.Systems = append(s.Systems, baselines...)
		}
		return runSweep(c, output.json(), s.Run, func(out io.Writer, rows []simulate.Row) error { return printSimulation(out, rows, *window) })
	}
	return c
}

// runSweep runs a sweep, shows how much is done, and prints its rows, as JSON or for people.
func runSweep[R any](c *cobra.Command, json bool, run func(context.Context, func(done, of int)) ([]R, error), print func(io.Writer, []R) error) error {
	progress, ended := progressOn(c.ErrOrStderr())
	rows, err := run(c.Context(), progress)
	ended()
	switch {
	case c.Context().Err() != nil:
		return errors.New("interrupted")
	case err != nil:
		return err
	case json:
		return printJSON(c.OutOrStdout(), rows)
	}
	return print(c.OutOrStdout(), rows)
}

// progressOn returns what prints on a terminal how much of a sweep is done, nil for anything else, and what removes that at the end.
func progressOn(out io.Writer) (progress func(rows, of int), ended func()) {
	screen, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(screen.Fd())) {
		return nil, func() {}
	}
	const line = "\r\033[K" // its beginning, and nothing on it
	return func(rows, of int) { fmt.Fprintf(screen, line+"%d of %d", rows, of) }, func() { fmt.Fprint(screen, line) }
}

// mostMade bounds the requests of a trace that is made: making one takes about a kilobyte for each.
const mostMade = 500_000

// readTrace reads a trace, or makes one that is long enough for the highest rate.
func readTrace(path string, mixes []simulate.Mix, window time.Duration) ([]load.Request, error) {
	if path == "" {
		n := 8000.0
		for _, m := range mixes {
			n = max(n, 1.1*simulate.Spare*slices.Max(m.Rates)*window.Seconds()) // its rate varies by less than a tenth
		}
		return load.MadeTrace(int(min(n, mostMade)), 1), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	trace, err := load.ReadAnyTrace(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return load.SpreadOut(trace), nil
}

// mixesOf are the mixes with these names, all if there is none, at the rates that are asked for or at those of so many engines.
func mixesOf(names []string, rates []float64, engines int) ([]simulate.Mix, error) {
	var out []simulate.Mix
	var known []string
	for _, m := range simulate.Mixes {
		known = append(known, m.Name)
		if len(names) > 0 && !slices.Contains(names, m.Name) {
			continue
		}
		var err error
		if m.Rates, err = ratesOf(rates, m.Rates, engines); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("--mix %q; want %s", n, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// ratesOf are the rates that are asked for; if there are none, those of four engines, for so many.
func ratesOf(rates, ofFour []float64, engines int) ([]float64, error) {
	for i, r := range rates {
		if !(r > 0) || r > 1e4 {
			return nil, fmt.Errorf("--rate %v; want more than 0, at most 10000", r)
		}
		if slices.Contains(rates[:i], r) {
			return nil, fmt.Errorf("--rate %v is given twice; want each once", r)
		}
	}
	if len(rates) > 0 {
		return rates, nil
	}
	var of []float64
	for _, r := range ofFour {
		of = append(of, r*float64(engines)/4)
	}
	return of, nil
}

// printSimulation prints the rows, where requests came for less than the window, and what cost comes to beside the best of the others.
func printSimulation(out io.Writer, rows []simulate.Row, window time.Duration) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range simulate.Table(rows) {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "part of the requests that keep their objective, and the 99th percentile of the times between tokens in ms; number of seeds: %d; P prefill, D decode, E either role\n", rows[0].Seeds)
	for i, r := range rows {
		if r.Window < window.Seconds() && (i == 0 || rows[i-1].Mix != r.Mix || rows[i-1].Rate != r.Rate) {
			fmt.Fprintf(out, "%s at %g/s: requests come for %.3g s, not for %v: the trace has no more\n", r.Mix, r.Rate, r.Window, window)
		}
	}
	for _, line := range simulate.Verdicts(rows) {
		fmt.Fprintln(out, line)
	}
	return nil
}
