package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"pdrouter/internal/adminapi"
	"pdrouter/internal/overrides"
)

// enginesCommand lists and changes the engines of a running gateway.
func enginesCommand() *cobra.Command {
	c := &cobra.Command{Use: "engines", Short: "List, add, drain and remove engines of a running gateway.", Args: cobra.NoArgs}
	f := c.PersistentFlags()
	gateway := f.String("gateway", "http://127.0.0.1:9091", "the base `URL` of listen.admin")
	tokenFile := f.String("token-file", "", "a `file` with a token for pdrouter-admin: scope read to list, engines for the rest; pdrouter token mint makes it")
	ca := f.String("ca-file", "", "a PEM `file` with whom the gateway's certificate is signed by; default: whom this machine trusts")
	if err := c.MarkPersistentFlagRequired("token-file"); err != nil {
		panic(err) // the command has no such flag
	}
	client := func() (*adminapi.Client, error) { return adminapi.NewClient(*gateway, *tokenFile, *ca) }

	list := &cobra.Command{Use: "list", Short: "Show every engine, where it comes from and how it is doing.", Args: cobra.NoArgs}
	output := outputFlag(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		to, err := client()
		if err != nil {
			return err
		}
		all, err := to.List(c.Context())
		if err != nil {
			return err
		}
		if output.json() {
			return printJSON(c.OutOrStdout(), all)
		}
		return printEngines(c.OutOrStdout(), all)
	}

	add := &cobra.Command{Use: "add MODEL LIST NAME URL", Short: "Add an engine; LIST is prefill, decode or engines.", Args: cobra.ExactArgs(4)}
	control := add.Flags().String("control", "", "the engine's control `URL`")
	side := add.Flags().String("side-channel", "", "`host:port` of the engine's side channel")
	key := add.Flags().String("bearer-token-file", "", "`file` with the bearer token for the engine, one that the configuration names")
	add.RunE = change(client, func(ctx context.Context, to *adminapi.Client, args []string) (adminapi.Engine, error) {
		entry := map[string]string{"name": args[2], "url": args[3]}
		for k, v := range map[string]string{"control": *control, "side_channel": *side, "bearer_token_file": *key} {
			if v != "" {
				entry[k] = v
			}
		}
		return to.Add(ctx, args[0], args[1], entry)
	})

	remove := &cobra.Command{Use: "remove NAME", Short: "Drain an engine, then forget it.", Args: cobra.ExactArgs(1)}
	wait := remove.Flags().String("drain", "", "wait for its requests for this `time` at most; default: until they end")
	force := remove.Flags().Bool("force", false, "at once; requests that it has run on")
	remove.MarkFlagsMutuallyExclusive("drain", "force")
	remove.RunE = change(client, func(ctx context.Context, to *adminapi.Client, args []string) (adminapi.Engine, error) {
		return to.Remove(ctx, args[0], *wait, *force)
	})

	drain := &cobra.Command{Use: "drain NAME", Short: "Give an engine no more requests.", Args: cobra.ExactArgs(1)}
	drain.RunE = change(client, func(ctx context.Context, to *adminapi.Client, args []string) (adminapi.Engine, error) {
		return to.Drain(ctx, args[0])
	})
	undrain := &cobra.Command{Use: "undrain NAME", Short: "Give an engine requests again; one that was removed is back.", Args: cobra.ExactArgs(1)}
	undrain.RunE = change(client, func(ctx context.Context, to *adminapi.Client, args []string) (adminapi.Engine, error) {
		return to.Undrain(ctx, args[0])
	})

	c.AddCommand(list, add, remove, drain, undrain)
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// change runs what changes an engine, and prints what became of it.
func change(client func() (*adminapi.Client, error), do func(context.Context, *adminapi.Client, []string) (adminapi.Engine, error)) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		to, err := client()
		if err != nil {
			return err
		}
		e, err := do(c.Context(), to, args)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s is %s%s, %d in flight\n", e.Name, e.State, movesLeft(e), e.InFlight)
		return err
	}
}

// movesLeft says what an engine that drains has to do yet, beside its requests; "" if nothing.
func movesLeft(e adminapi.Engine) string {
	if e.MovesLeft == 0 {
		return ""
	}
	return fmt.Sprintf(", %d moves left", e.MovesLeft)
}

// printable returns a name that others chose so that it cannot steer a terminal or pass for another line.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// printEngines prints a table, model by model.
func printEngines(out io.Writer, all adminapi.Listing) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tLIST\tENGINE\tSTATE\tIN FLIGHT\tSOURCE\tURL\tCHANGED")
	last := ""
	for _, e := range all.Engines {
		model := e.Model
		if model == last {
			model = ""
		}
		last = e.Model
		changed := ""
		if e.At != nil {
			changed = e.At.Local().Format(time.DateTime) + " by " + printable(e.By)
		}
		state := e.State + movesLeft(e)
		if e.Recomputing {
			state += ", recomputes"
		}
		if len(e.SlowFrom) > 0 {
			state += ", slow from " + strings.Join(e.SlowFrom, " ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", model, e.Role, e.Name, state, e.InFlight, e.Source, e.URL, changed)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, it := range all.Expired {
		if _, err := fmt.Fprintf(out, "%s: %s by %s at %s does not hold any more: no gateway ran for %s, and the configuration holds; ask again if it is still wanted\n",
			it.Name, it.Wanted, printable(it.By), it.At.Local().Format(time.DateTime), overrides.TrustedFor); err != nil {
			return err
		}
	}
	return nil
}
