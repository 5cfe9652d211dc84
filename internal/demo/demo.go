// Package demo is pdrouter demo: a gateway and reference engines as processes of this binary, whose answers are compared with those of one
// engine alone. Tests of the command use its Fleet.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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
	fleet, err := StartFleet(ctx, dir, transport, "--prefill-us-per-token", "100", "--decode-us-per-step", "2000")
	if err != nil {
		return errors.Join(err, fleet.Stop(), fleet.Tail())
	}
	fmt.Fprintf(out, "KV transport: %s · metadata: in memory · gateway: %s\n\n", fleet.transportUsed(), fleet.Client)

	table := NewTable(out)
	if err := fleet.show(ctx, table); err != nil {
		return errors.Join(err, fleet.Stop(), fleet.Tail())
	}
	verdict := fmt.Sprintf("%d of %d answers equal one engine's alone", table.equal, table.rows)
	fmt.Fprintf(out, "\n%s\n", verdict)
	if table.equal == table.rows {
		if err := fleet.Settled(ctx); err != nil {
			return errors.Join(err, fleet.Stop())
		}
		fmt.Fprintln(out, "every engine's KV blocks are free again")
	}
	if stay && table.equal == table.rows && ctx.Err() == nil {
		fmt.Fprint(out, demoHint(fleet.Client, fleet.Operations))
		<-ctx.Done()
	}
	if err := fleet.Stop(); err != nil {
		return err
	}
	if table.equal != table.rows {
		return errors.New(verdict)
	}
	return nil
}

// show sends all requests and prints a row for each: some by the gateway's default policy, then one pair after the other.
func (f *Fleet) show(ctx context.Context, table *Table) error {
	for _, part := range []struct {
		about, policy string
		asks          []Ask
		atOnce        bool
	}{
		{"By the default policy, cost. The engines are idle, so decode computes the prompt itself: a hand-off would only take time.", byCost, busy[:1], false},
		{"By the same policy, all at once. While a decode engine works, prefill computes further prompts, so that no stream is held up.", byCost, busy[1:], true},
		{"By the policy roles: every prompt is split, and each pair has its turn.", byRoles, Asks(), false},
	} {
		table.say(part.about)
		if err := f.setPolicy(ctx, part.policy); err != nil {
			return err
		}
		atOnce := 1
		if part.atOnce {
			atOnce = len(part.asks)
		}
		for asks := range slices.Chunk(part.asks, atOnce) {
			if err := f.compareAll(ctx, asks, table); err != nil {
				return err
			}
		}
	}
	return nil
}

// busy are requests whose prompts and answers keep an engine busy for a while.
var busy = func() (asks []Ask) {
	for i := range 5 {
		asks = append(asks, Ask{stream: true, prompt: fmt.Sprintf("%d. ", i+1) + strings.Repeat("Who computes this prompt, and who gives the answer? ", 8), tokens: 48})
	}
	return asks
}()

// Ask is one sample request: a prompt on one of the two routes.
type Ask struct {
	chat, stream bool
	prompt       string
	tokens       int // to generate

	messages      []map[string]string // of a chat, in place of prompt
	salt, session string
}

// ChatOf asks for the next answer of a conversation.
func ChatOf(messages []map[string]string, salt, session string, tokens int, stream bool) Ask {
	return Ask{chat: true, stream: stream, tokens: tokens, messages: messages, salt: salt, session: session}
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

  %[2]s/ui      shows all of it in a browser
  curl %[2]s/requests?id=ID      (ID is the answer's x-request-id) shows where its KV went
  curl %[2]s/metrics
`, client, operations, Model, "Where is my KV cache now, and which engine has read this prompt before it came to decode?")
}
