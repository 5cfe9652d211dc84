package sim

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"
)

// ServeArgs runs the modelled engines that arguments ask for, until ctx ends.
func ServeArgs(ctx context.Context, args []string, out io.Writer) error {
	var spec Spec
	flags := flag.NewFlagSet("engines", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&spec.Costs, "costs", "llama-3.1-8b-h100", "a `name` of bench/costs.json")
	flags.StringVar(&spec.Connector, "connector", "vllm-nixl-push", "vllm-nixl-push, vllm-nixl-pull or none")
	flags.IntVar(&spec.Prefill, "prefill", 1, "`engines` for prefill")
	flags.IntVar(&spec.Decode, "decode", 1, "`engines` for decode, or for whole requests")
	flags.IntVar(&spec.Budget, "budget", ChunkBudget, "`tokens` of a step of an engine that decodes")
	flags.Float64Var(&spec.Speed, "speed", 1, "how much `faster` than real their time runs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("bench: engines: %q is no flag", flags.Arg(0))
	}
	return Serve(ctx, spec, out)
}

// Args are what ServeEngines reads the spec from.
func (s Spec) Args() []string {
	return []string{"-costs", s.Costs, "-connector", s.Connector, "-prefill", strconv.Itoa(s.Prefill), "-decode", strconv.Itoa(s.Decode), "-budget", strconv.Itoa(s.Budget), "-speed", strconv.FormatFloat(s.Speed, 'g', -1, 64)}
}

// ChunkBudget is the tokens of a step of an engine that decodes beside prompts: of 512, 1,024, 2,048 and 8,192 the one with which
// aggregated engines serve most requests of the replay within its SLO, and what vLLM takes by default where it has no other.
const ChunkBudget = 2048
