// Package demo is pdrouter demo: a gateway and reference engines as processes of this binary, whose answers are compared with those of one
// engine alone. Tests of the command use its Fleet.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Model is the name under which the demo's engines serve the reference model.
const Model = "reference"

// Command is pdrouter demo.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use: "demo", Args: cobra.NoArgs,
		Short: "Run a gateway and four reference engines on this machine, and compare every answer.",
	}
	stay := c.Flags().Bool("serve", false, "leave the gateway and the engines running until interrupted")
	transport := c.Flags().String("transport", "auto", "what moves the KV blocks: auto, tcp or nixl (auto: nixl where its library is found)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return demo(c.Context(), *transport, *stay, c.OutOrStdout())
	}
	return c
}

// demo starts a gateway and four reference engines as processes of their own, sends sample requests through the
// OpenAI routes, and compares each answer with that of one engine alone. It returns an error unless all are equal.
func demo(ctx context.Context, transport string, stay bool, out io.Writer) error {
	dir, err := os.MkdirTemp("", "pdrouter-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintln(out, "starting a gateway, four engines (prefill TP 2, TP 2; decode TP 1, TP 4), and one engine alone to compare with")
	fleet, err := StartFleet(ctx, dir, transport)
	if err != nil {
		return errors.Join(err, fleet.Stop(), fleet.Tail())
	}
	fmt.Fprintf(out, "KV transport: %s · metadata: in memory · gateway: %s\n\n", fleet.transportUsed(), fleet.Client)

	asks := Asks()
	table := NewTable(out)
	equal := 0
	for i, ask := range asks {
		row, err := fleet.compare(ctx, i+1, ask)
		if err != nil {
			return errors.Join(fmt.Errorf("request %d (%s): %w", i+1, ask.label(), err), fleet.Stop(), fleet.Tail())
		}
		table.print(row)
		if row.equal {
			equal++
		}
	}
	verdict := fmt.Sprintf("%d of %d answers equal one engine's alone", equal, len(asks))
	fmt.Fprintf(out, "\n%s\n", verdict)
	if equal == len(asks) {
		if err := fleet.Settled(ctx); err != nil {
			return errors.Join(err, fleet.Stop())
		}
		fmt.Fprintln(out, "every engine's KV blocks are free again")
	}
	if stay && equal == len(asks) && ctx.Err() == nil {
		fmt.Fprint(out, demoHint(fleet.Client, fleet.Operations))
		<-ctx.Done()
	}
	if err := fleet.Stop(); err != nil {
		return err
	}
	if equal != len(asks) {
		return errors.New(verdict)
	}
	return nil
}

// Ask is one sample request: a prompt on one of the two routes.
type Ask struct {
	chat, stream bool
	prompt       string
	tokens       int // to generate
}

func (a Ask) route() string {
	if a.chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func (a Ask) label() string {
	kind := "completion"
	if a.chat {
		kind = "chat"
	}
	if a.stream {
		kind += " stream"
	}
	return kind
}

// Asks are long and short, alike and not, so that every pair of engines serves each kind and some prompts share
// a prefix that decode already holds.
func Asks() []Ask {
	story := "A block of KV cache travels from one engine's memory into another's, and nothing may be lost on the way. "
	var asks []Ask
	for i, long := range []int{1, 4, 2, 6, 3, 5, 4, 8} {
		asks = append(asks, Ask{
			chat:   i%4 < 2,
			stream: i%2 == 1,
			prompt: fmt.Sprintf("Request %d. ", i+1) + strings.Repeat(story, long),
			tokens: 16,
		})
	}
	return asks
}

func demoHint(client, operations string) string {
	return fmt.Sprintf(`
The gateway stays up until Ctrl-C. Try it:

  curl -iN %[1]s/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model":"%[3]s","stream":true,"max_tokens":32,"messages":[{"role":"user","content":"%[4]s"}]}'

  from openai import OpenAI
  client = OpenAI(base_url="%[1]s/v1", api_key="none")
  print(client.chat.completions.create(model="%[3]s", max_tokens=32,
        messages=[{"role": "user", "content": "%[4]s"}]).choices[0].message.content)

  curl %[2]s/requests?id=ID      (ID is the answer's x-request-id) shows where its KV went
  curl %[2]s/metrics
`, client, operations, Model, "Where is my KV cache now, and which engine has read this prompt before it came to decode?")
}
