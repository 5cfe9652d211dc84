package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/bench/simulate"
	"pdrouter/router/config"
)

// conversationRates are those of four engines, from engines with little to do to more than they can do.
var conversationRates = []float64{.5, 1, 1.5, 2, 2.5, 3, 3.5}

func simulateConversationsCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "conversations", Short: "Replay conversations while engines come and go, with moves of their KV and without.", Args: cobra.NoArgs,
		Long: `Replay conversations on modelled engines of either role (a 70B model on four H100 each) with the policy cost, while engines are drained, lost and
added: the time to the first token of second and later turns, with the moves of migration and without. Nothing is sent anywhere.

Turns are counted by what has become of the engines that served the turn before: as long as one of them serves (stay), once they have drained, or
were lost with all that they had. An engine that drains is gone after 30 seconds.

  pdrouter simulate conversations --rate 1,2
  pdrouter simulate conversations --changes add@40s,drain@45s,lose@120s --uses drain,route,warm`,
	}
	f := c.Flags()
	engines := f.Int("engines", 4, "the `number` of engines at the beginning")
	rates := f.Float64Slice("rate", nil, "`rates`, in turns a second, commas between; default: seven, to more than the engines can do")
	f.Lookup("rate").DefValue = "" // pflag would print []
	seeds := f.Int("seeds", 10, "how often each rate is replayed, with other arrivals and other engines that go (1 to 1000)")
	window := f.Duration("window", 3*time.Minute, "the time of the engines in which conversations begin")
	context := f.Int("context", 37_000, "`tokens` of a conversation's first prompt")
	added := f.Int("new", 2000, "`tokens` of each next turn behind the answer before")
	answer := f.Int("answer", 200, "`tokens` of an answer")
	turns := f.Int("turns", 6, "the `number` of turns of a conversation")
	pause := f.Duration("pause", 20*time.Second, "the `time` between an answer and the next turn")
	changes := f.StringSlice("changes", []string{"add@40s", "drain@40s", "add@70s", "drain@70s", "add@100s", "drain@100s", "lose@130s", "add@140s"}, "which `changes` of engines come when: drain, lose or add, commas between")
	uses := f.StringSlice("uses", []string{"drain", "route"}, "for what KV is moved, as `migration.uses`, commas between")
	ttft := f.Duration("ttft", 2*time.Second, "the objective: `time` to the first token")
	itl := f.Duration("itl", 50*time.Millisecond, "the objective: `time` between tokens, in the mean of an answer")
	output := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		bad := func(format string, args ...any) error {
			return usageError{fmt.Errorf(format, args...), c.CommandPath()}
		}
		for _, n := range []struct {
			flag            string
			is, least, most int
		}{{"engines", *engines, 1, 64}, {"seeds", *seeds, 1, 1000}, {"context", *context, 1, 120_000}, {"new", *added, 1, 10_000}, {"answer", *answer, 2, 10_000}, {"turns", *turns, 2, 6}} {
			if n.is < n.least || n.is > n.most {
				return bad("--%s %d; want %d to %d", n.flag, n.is, n.least, n.most)
			}
		}
		for name, d := range map[string]time.Duration{"window": *window, "pause": *pause, "ttft": *ttft, "itl": *itl} {
			if d <= 0 {
				return bad("--%s %v; want more than 0", name, d)
			}
		}
		for _, use := range *uses {
			if !slices.Contains(config.MigrationUses, use) {
				return bad("--uses %q; want %s", use, strings.Join(config.MigrationUses, ", "))
			}
		}
		s := simulate.ConversationSweep{Seeds: *seeds, Conversations: simulate.Conversations{Window: *window, Context: *context, New: *added, Answer: *answer, Turns: *turns, Pause: *pause, Uses: *uses}}
		var err error
		if s.Rates, err = ratesOf(*rates, conversationRates, *engines); err != nil {
			return bad("%w", err)
		}
		if s.Changes, err = simulate.ParseChanges(*changes); err != nil {
			return bad("--changes %w", err)
		}
		if s.Costs, err = sim.CostsOf(simulatedCosts); err != nil {
			return err
		}
		s.SLO = load.SLO{Ttft: *ttft, Tpot: *itl}
		cost, err := simulate.Cost(*engines, s.SLO)
		if err != nil {
			return err
		}
		s.Layout, s.Policy, s.Budget = cost.Layout, cost.Policy, sim.ChunkBudget
		return runSweep(c, output.json(), s.Run, func(out io.Writer, rows []simulate.ConversationRow) error {
			return printConversations(out, rows, *ttft, *seeds)
		})
	}
	return c
}

// printConversations prints the rows and what became of moves.
func printConversations(out io.Writer, rows []simulate.ConversationRow, ttft time.Duration, seeds int) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range simulate.ConversationTable(rows) {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "times to the first tokens of second and later turns, without moves and with; late: after the objective, %v; number of seeds: %d\n", ttft, seeds)
	for _, line := range simulate.MoveLines(rows) {
		fmt.Fprintln(out, line)
	}
	return nil
}
