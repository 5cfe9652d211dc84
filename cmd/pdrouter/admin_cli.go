package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"pdrouter/internal/overrides"
)

// adminClient speaks to a gateway's listener for administrators.
type adminClient struct {
	base, tokenFile string
	http            *http.Client
}

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
	client := func() (adminClient, error) { return newAdminClient(*gateway, *tokenFile, *ca) }

	list := &cobra.Command{Use: "list", Short: "Show every engine, where it comes from and how it is doing.", Args: cobra.NoArgs}
	output := outputFlag(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		to, err := client()
		if err != nil {
			return err
		}
		var all adminList
		if err := to.do(c.Context(), http.MethodGet, "/engines", nil, &all); err != nil {
			return err
		}
		if output.json() {
			return printJSON(c.OutOrStdout(), all)
		}
		return printEngines(c.OutOrStdout(), all)
	}
	c.AddCommand(list, addEngineCommand(client), removeEngineCommand(client),
		changeEngineCommand(client, "drain", "Give an engine no more requests."),
		changeEngineCommand(client, "undrain", "Give an engine requests again; one that was removed is back."))
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

func addEngineCommand(client func() (adminClient, error)) *cobra.Command {
	c := &cobra.Command{Use: "add MODEL LIST NAME URL", Short: "Add an engine; LIST is prefill, decode or engines.", Args: cobra.ExactArgs(4)}
	control := c.Flags().String("control", "", "the engine's control `URL`")
	side := c.Flags().String("side-channel", "", "`host:port` of the engine's side channel")
	key := c.Flags().String("bearer-token-file", "", "`file` with the bearer token for the engine, one that the configuration names")
	c.RunE = func(c *cobra.Command, names []string) error {
		to, err := client()
		if err != nil {
			return err
		}
		entry := map[string]string{"name": names[2], "url": names[3]}
		for k, v := range map[string]string{"control": *control, "side_channel": *side, "bearer_token_file": *key} {
			if v != "" {
				entry[k] = v
			}
		}
		return to.change(c.Context(), c.OutOrStdout(), http.MethodPost, "/models/"+url.PathEscape(names[0])+"/"+url.PathEscape(names[1]), entry)
	}
	return c
}

func removeEngineCommand(client func() (adminClient, error)) *cobra.Command {
	c := &cobra.Command{Use: "remove NAME", Short: "Drain an engine, then forget it.", Args: cobra.ExactArgs(1)}
	wait := c.Flags().String("drain", "", "wait for its requests for this `time` at most; default: until they end")
	force := c.Flags().Bool("force", false, "at once; requests that it has run on")
	c.MarkFlagsMutuallyExclusive("drain", "force")
	c.RunE = func(c *cobra.Command, names []string) error {
		to, err := client()
		if err != nil {
			return err
		}
		query := url.Values{}
		if *force {
			query.Set("force", "true")
		} else if *wait != "" {
			query.Set("drain", *wait)
		}
		return to.change(c.Context(), c.OutOrStdout(), http.MethodDelete, "/engines/"+url.PathEscape(names[0])+"?"+query.Encode(), nil)
	}
	return c
}

func changeEngineCommand(client func() (adminClient, error), what, about string) *cobra.Command {
	return &cobra.Command{Use: what + " NAME", Short: about, Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, names []string) error {
		to, err := client()
		if err != nil {
			return err
		}
		return to.change(c.Context(), c.OutOrStdout(), http.MethodPost, "/engines/"+url.PathEscape(names[0])+"/"+what, nil)
	}}
}

func newAdminClient(gateway, tokenFile, ca string) (adminClient, error) {
	c := adminClient{strings.TrimSuffix(gateway, "/"), tokenFile, &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it bears a token
	}}
	if ca == "" {
		return c, nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return c, fmt.Errorf("engines: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return c, fmt.Errorf("engines: %s has no certificate", ca)
	}
	c.http.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	return c, nil
}

// change asks for a change, and prints what became of the engine.
func (c adminClient) change(ctx context.Context, out io.Writer, method, path string, body any) error {
	var e adminEngine
	if err := c.do(ctx, method, path, body, &e); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s is %s, %d in flight\n", e.Name, e.State, e.InFlight)
	return err
}

// do sends a request and reads the answer into to. A refusal is an error with what the gateway says.
func (c adminClient) do(ctx context.Context, method, path string, body, to any) error {
	token, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return fmt.Errorf("engines: %w", err)
	}
	var sent bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&sent).Encode(body); err != nil {
			return fmt.Errorf("engines: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/admin/v1"+path, &sent)
	if err != nil {
		return fmt.Errorf("engines: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("engines: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return fmt.Errorf("engines: %w", err)
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return fmt.Errorf("engines: %s answered %d: a redirect, which is not followed; name the address of listen.admin in --gateway", c.base, resp.StatusCode)
	}
	if resp.StatusCode >= 400 {
		var refused struct {
			Error struct{ Message string }
		}
		if json.Unmarshal(b, &refused) != nil || refused.Error.Message == "" {
			refused.Error.Message = http.StatusText(resp.StatusCode)
		}
		return fmt.Errorf("engines: %d: %s", resp.StatusCode, refused.Error.Message)
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("engines: the answer is no gateway's: %w", err)
	}
	return nil
}

// printable returns a name that others chose so that it cannot steer a terminal or pass for another line.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// printEngines prints a table, model by model.
func printEngines(out io.Writer, all adminList) error {
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", model, e.Role, e.Name, e.State, e.InFlight, e.Source, e.URL, changed)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, it := range all.Lapsed {
		if _, err := fmt.Fprintf(out, "%s: %s by %s at %s does not hold any more: no gateway ran for %s, and the configuration holds; ask again if it is still wanted\n",
			it.Name, it.Wanted, printable(it.By), it.At.Local().Format(time.DateTime), overrides.TrustedFor); err != nil {
			return err
		}
	}
	return nil
}
