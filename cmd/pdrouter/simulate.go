package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/bench/simulate"
	"pdrouter/internal/configfile"
)

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
	f := c.Flags()
	config := f.StringP("config", "c", "", "a gateway's configuration `FILE`: its policy is replayed too, on --layout")
	trace := f.String("trace", "", "the trace `FILE`")
	layout := f.String("layout", "", "engines by role of the configuration's policy, such as 2P2D, 4D or 4E (either role); default: --engines of either role")
	engines := f.Int("engines", 4, "the `number` of engines")
	rates := f.Float64Slice("rate", nil, "requests a second; default: six rates for each mix, to more than the engines can do")
	mixes := f.StringSlice("mix", nil, "recorded, prompts/4 or answers*4; default: all")
	seeds := f.Int("seeds", 10, "how many choices of the trace's sessions are replayed")
	window := f.Duration("window", 2*time.Minute, "the time of the engines in which requests come")
	ttft := f.Duration("ttft", 2*time.Second, "the objective: `time` to the first token")
	itl := f.Duration("itl", 50*time.Millisecond, "the objective: `time` between tokens, in the mean of an answer")
	alone := f.Bool("alone", false, "leave the baselines out")
	output := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		bad := func(format string, args ...any) error {
			return usageError{fmt.Errorf(format, args...), c.CommandPath()}
		}
		if *engines < 1 || *engines > 64 || *seeds < 1 || *window <= 0 || *ttft <= 0 || *itl <= 0 {
			return bad("want 1 to 64 engines, at least one seed, and times of more than 0")
		}
		s := simulate.Sweep{Seeds: *seeds, Window: *window, SLO: load.SLO{Ttft: *ttft, Tpot: *itl}}
		var err error
		if s.Costs, err = sim.CostsOf("llama-3.3-70b-4xh100"); err != nil {
			return err
		}
		if s.Trace, err = readTrace(*trace); err != nil {
			return err
		}
		if s.Mixes, err = mixesOf(*mixes, *rates, *engines); err != nil {
			return bad("%w", err)
		}
		cost, err := simulate.Cost(*engines, s.SLO)
		if err != nil {
			return err
		}
		s.Systems = []simulate.System{cost}
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
		rows, err := s.Run(c.Context(), nil)
		if err != nil {
			return err
		}
		if output.json() {
			return printJSON(c.OutOrStdout(), rows)
		}
		return printSimulation(c.OutOrStdout(), rows)
	}
	return c
}

// readTrace reads a trace, or makes one.
func readTrace(path string) ([]load.Request, error) {
	if path == "" {
		return load.MadeTrace(8000, 1), nil
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
	for _, r := range rates {
		if !(r > 0) || r > 1e4 {
			return nil, fmt.Errorf("--rate %v; want more than 0, at most 10000", r)
		}
	}
	var out []simulate.Mix
	var known []string
	for _, m := range simulate.Mixes {
		known = append(known, m.Name)
		if len(names) > 0 && !slices.Contains(names, m.Name) {
			continue
		}
		of := rates
		if len(of) == 0 {
			for _, r := range m.Rates {
				of = append(of, r*float64(engines)/4)
			}
		}
		m.Rates = of
		out = append(out, m)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("--mix %q; want %s", n, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// printSimulation prints the rows, and what cost comes to beside the best of the others.
func printSimulation(out io.Writer, rows []simulate.Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range simulate.Table(rows) {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "part of the requests that keep their objective, and the 99th percentile of the times between tokens in ms; mean of %d seeds; P prefill, D decode, E either role\n", rows[0].Seeds)
	for _, line := range simulate.Verdicts(rows) {
		fmt.Fprintln(out, line)
	}
	return nil
}
