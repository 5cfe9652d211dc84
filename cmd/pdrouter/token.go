package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// tokenAbout says how tokens reach these commands: those in arguments are seen by everybody on the machine.
const tokenAbout = "Mint, show and check tokens. Tokens are read from a file or the standard input, never from an argument."

// defaultIssuer is the issuer in tokens of an installation that has only one.
const defaultIssuer = "pdrouter"

func mintCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "mint", Short: "Mint a token.", Args: cobra.NoArgs,
		Example: `  pdrouter token mint --key keys/current.jwk --audience pdrouter --subject alice --models llama-3-8b --limits requests=60
  pdrouter token mint --key keys/current.jwk --audience pdrouter-metadata --subject prefill-0 --engine prefill-0 --role prefill --scope "write read"
  pdrouter token mint --key keys/current.jwk --audience pdrouter-admin --subject alice --scope "read engines"`,
	}
	f := c.Flags()
	var g auth.Grant
	keyFile := f.String("key", "", "file of the private key")
	f.StringVar(&g.Issuer, "issuer", defaultIssuer, "issuer")
	f.StringVar(&g.Audience, "audience", "", "pdrouter, pdrouter-metadata or pdrouter-admin")
	f.StringVar(&g.Subject, "subject", "", "who will bear the token")
	f.StringVar(&g.Engine, "engine", "", "name of the bearer's own engine (agents)")
	f.StringVar(&g.Role, "role", "", "role of that engine: prefill, decode or both (agents)")
	f.StringVar(&g.Size, "size", "", "how many ranks that engine has, dp/pp/tp: its records must say so; needed with --ranks")
	f.DurationVar(&g.TTL, "ttl", time.Hour, "how long the token is valid")
	scope := f.String("scope", "", "scopes, with spaces between: write, read, plane for agents")
	reads := f.String("reads", "", "engines that an agent may read besides those of the other role, with commas between")
	models := f.String("models", "", "models that a client may name, with commas between; none means all")
	ranks := f.String("ranks", "", "ranks of its engine that an agent may write, each dp/pp/tp, with commas between; none means all")
	confirm := f.String("confirm", "", "file of the agent's own public key (Ed25519), which the token is bound to")
	limits := f.String("limits", "", "what a client may use: requests=N,tokens=N (a minute),concurrent=N")
	secret := f.String("development-secret", "", "file of a secret to sign with, in place of --key: for development only")
	c.MarkFlagsOneRequired("key", "development-secret")
	c.MarkFlagsMutuallyExclusive("key", "development-secret")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := emptyLists(c, "models", "ranks"); err != nil {
			return err
		}
		g.Scopes, g.Reads, g.Models, g.Ranks = strings.Fields(*scope), splitList(*reads), splitList(*models), splitList(*ranks)
		var err error
		if g.Limits, err = parseLimits(*limits); err != nil {
			return err
		}
		if *confirm != "" {
			if g.Confirm, err = keys.Load(*confirm); err != nil {
				return err
			}
		}
		load, file := keys.Load, *keyFile
		if *secret != "" {
			load, file = keys.DevelopmentSecret, *secret
		}
		key, err := load(file)
		if err != nil {
			return err
		}
		token, err := auth.Mint(key, g)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), token)
		for _, text := range mintWarnings(g) {
			fmt.Fprintln(c.ErrOrStderr(), "pdrouter: token mint: warning:", text)
		}
		return nil
	}
	return c
}

// readToken reads one token from a file, or from in if there is no file.
func readToken(file string, in io.Reader) (string, error) {
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("token: %w", err)
		}
		defer f.Close()
		in = f
	}
	line, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
	if line = strings.TrimSpace(line); line != "" {
		return line, nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("token: %w", err)
	}
	return "", errors.New("token: no token in the file or on the standard input")
}

func inspectCommand() *cobra.Command {
	c := &cobra.Command{Use: "inspect", Short: "Show what a token says, unchecked.", Args: cobra.NoArgs}
	file := c.Flags().String("token", "", "`file` with the token; default the standard input")
	c.RunE = func(c *cobra.Command, _ []string) error {
		token, err := readToken(*file, c.InOrStdin())
		if err != nil {
			return err
		}
		head, claims, err := auth.Inspect(token)
		if err != nil {
			return err
		}
		return printJSON(c.OutOrStdout(), map[string]any{"header": head, "claims": claims})
	}
	return c
}

// printJSON prints a value for programs.
func printJSON(out io.Writer, value any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
