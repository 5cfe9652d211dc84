package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/policies"
	"pdrouter/router/fleet"
)

func explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "explain [FILE]", Short: "Say which engines a request would be given to now, and why.", Args: cobra.MaximumNArgs(1),
		Long: `Say which engines a request would be given to now, and why. FILE has the request's body, "-" or none is standard input. Nothing is sent to an
engine.

  echo '{"model":"tiny","prompt":"Hello"}' | pdrouter explain`,
	}
	f := c.Flags()
	operations := f.String("operations", "http://127.0.0.1:9090", "the base `URL` of listen.operations")
	route := f.String("route", "", "the request's `route`; default: by the body, /v1/chat/completions or /v1/completions")
	headers := f.StringArrayP("header", "H", nil, "a `field` of the request, such as \"X-Session-Id: a\"; may be given several times")
	tokenFile := f.String("token-file", "", "a `file` with a token for pdrouter-admin, scope read, where auth.admins is configured")
	output := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		body, err := readBody(args, c.InOrStdin())
		if err != nil {
			return err
		}
		to := "/" + strings.TrimPrefix(cmp.Or(*route, routeOf(body)), "/")
		if path.Clean(to) != to || strings.ContainsAny(to, "?#%") {
			return usageError{fmt.Errorf("--route is %q; want a path as clients ask for, such as /v1/completions", *route), c.CommandPath()}
		}
		req, err := http.NewRequestWithContext(c.Context(), http.MethodPost, strings.TrimSuffix(*operations, "/")+"/explain"+to, bytes.NewReader(body))
		if err != nil {
			return err
		}
		for _, h := range *headers {
			name, value, ok := strings.Cut(h, ":")
			if !ok {
				return usageError{fmt.Errorf("--header is %q; want \"Name: value\"", h), c.CommandPath()}
			}
			req.Header.Add(name, strings.TrimSpace(value))
		}
		if *tokenFile != "" {
			token, err := os.ReadFile(*tokenFile)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		}
		client := http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := client.Do(req)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the gateway answered %d: %s", answer.StatusCode, cmp.Or(strings.TrimSpace(string(text)), http.StatusText(answer.StatusCode)))
		}
		var e fleet.Explanation
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("the gateway's answer: %w", err)
		}
		if output.json() {
			return printJSON(c.OutOrStdout(), e)
		}
		return printExplanation(c.OutOrStdout(), e)
	}
	return c
}

func readBody(args []string, in io.Reader) ([]byte, error) {
	if len(args) == 0 || args[0] == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(args[0])
}

// routeOf is the route that a body is of.
func routeOf(body []byte) string {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) == nil && members["messages"] != nil {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func printExplanation(out io.Writer, e fleet.Explanation) error {
	fmt.Fprintf(out, "model %s, rule %s, a prompt of about %d tokens\n", e.Model, e.Rule, e.PromptTokens)
	switch {
	case e.Split:
		fmt.Fprintf(out, "prefill on %s, decode on %s: %s\n", e.Prefill, e.Decode, e.Why)
	case e.Decode != "":
		fmt.Fprintf(out, "%s alone (%s): %s\n", e.Decode, e.Reason, e.Why)
	default:
		fmt.Fprintf(out, "no engine can serve it now: %s\n", e.Reason)
	}
	for _, s := range e.Stages {
		fmt.Fprintf(out, "\n%s, by %s", s.Role, s.Policy)
		if s.Picker != "" {
			fmt.Fprintf(out, ", picker %s", s.Picker)
		}
		fmt.Fprintln(out)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\tENGINE\tSTATE\tIN FLIGHT\tCACHED\tBACKLOG\tSCORES\tSUM\t")
		for _, x := range s.Engines {
			mark, scores, sum := " ", x.LeftOut, ""
			if x.Taken {
				mark = "*"
			}
			if x.LeftOut == "" && len(x.Scores) > 0 {
				var all []string
				for _, v := range x.Scores {
					all = append(all, fmt.Sprintf("%s %.2f×%g", v.Scorer, v.Score, v.Weight))
				}
				scores, sum = strings.Join(all, ", "), fmt.Sprintf("%.2f", x.Sum)
			} else if scores == "" {
				scores = x.Why
			} else if x.Why != "" {
				scores += ": " + x.Why
			}
			inFlight := strconv.Itoa(x.InFlight)
			if x.Elsewhere > 0 {
				inFlight += fmt.Sprintf(" (%d elsewhere)", x.Elsewhere)
			}
			if u := x.Unrouted; u != nil && u.Requests > 0 {
				inFlight += fmt.Sprintf(" (%d unrouted, %.1f s ago)", u.Requests, u.Age)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t\n", mark, x.Engine, x.State, inFlight, x.Cached, x.Backlog, scores, sum)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return printPaths(out, e.Paths)
}

// mostPaths is how many paths are printed; -o json has all.
const mostPaths = 12

// printPaths prints the paths that the policy cost has priced.
func printPaths(out io.Writer, paths []policies.Path) error {
	if len(paths) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\n%d paths, the cheapest first; a price is how many requests would miss their objective\n", len(paths))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tPREFILL\tDECODE\tPRICE\tMISSED\tSTREAMS\tGAPS\tROOM\tLATE\tAWAY\tFIRST TOKEN\tBETWEEN TOKENS\tMOVE\t")
	for _, x := range paths[:min(mostPaths, len(paths))] {
		mark := " "
		if x.Taken {
			mark = "*"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.0f ms\t%.1f ms\t%s\t\n", mark, cmp.Or(x.Prefill, "alone"), x.Decode, x.Price, x.Missed, x.Streams, x.Gaps, x.Room, x.Late, x.Away, 1e3*x.TTFT, 1e3*x.ITL, moveOf(x.Move))
	}
	return t.Flush()
}

// moveOf is the move that a path begins with, for people.
func moveOf(m *policies.Moving) string {
	if m == nil {
		return ""
	}
	how := ""
	if m.Pinned {
		how = ", pinned there"
	}
	return fmt.Sprintf("%d tokens from %s in %.0f ms%s", m.Tokens, m.From, 1e3*m.Seconds, how)
}
