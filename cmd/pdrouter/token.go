package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"pdrouter/auth"
)

const tokenUsage = `usage: pdrouter token mint --key FILE --audience AUDIENCE --subject NAME [--ttl 1h] [--scope "write read"]
                          [--engine NAME --role prefill|decode|both --ranks DP/PP/TP,… --size DP/PP/TP --reads ENGINE,… --confirm FILE]
                          [--models MODEL,… --limits requests=N,tokens=N,concurrent=N]
       pdrouter token inspect [--token FILE]
       pdrouter token verify --keys FILE|DIR,…|--jwks FILE|URL --audience AUDIENCE [--issuer ISSUER]
                          [--kind pdrouter|kubernetes|spiffe] [--scope SCOPES] [--token FILE]
audiences: pdrouter (clients), pdrouter-metadata (agents), pdrouter-admin
`

// defaultIssuer is the issuer in tokens of an installation that has only one.
const defaultIssuer = "pdrouter"

// runToken mints, shows and checks tokens. Tokens are read from a file or the standard input, never from an argument:
// those are seen by everybody on the machine.
func runToken(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(out, tokenUsage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "mint":
		return mintToken(args[1:], out)
	case "inspect":
		return inspectToken(args[1:], os.Stdin, out)
	case "verify":
		return verifyToken(ctx, args[1:], os.Stdin, out)
	case "-h", "--help", "help":
		fmt.Fprint(out, tokenUsage)
		return flag.ErrHelp
	}
	return fmt.Errorf("token: unknown command %q; want mint, inspect or verify", args[0])
}

func mintToken(args []string, out io.Writer) error {
	f := flag.NewFlagSet("token mint", flag.ContinueOnError)
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
	if err := parseFlags(f, args, out); err != nil {
		return err
	}
	if err := emptyLists(f, "models", "ranks"); err != nil {
		return err
	}
	if (*keyFile == "") == (*secret == "") {
		return errors.New("token mint: --key is missing, or stands beside --development-secret")
	}
	g.Scopes, g.Reads, g.Models, g.Ranks = strings.Fields(*scope), splitList(*reads), splitList(*models), splitList(*ranks)
	var err error
	if g.Limits, err = parseLimits(*limits); err != nil {
		return err
	}
	if *confirm != "" {
		if g.Confirm, err = auth.LoadKey(*confirm); err != nil {
			return err
		}
	}
	load, file := auth.LoadKey, *keyFile
	if *secret != "" {
		load, file = auth.DevelopmentKey, *secret
	}
	key, err := load(file)
	if err != nil {
		return err
	}
	token, err := auth.Mint(key, g)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, token)
	for _, text := range mintWarnings(g) {
		fmt.Fprintln(os.Stderr, "pdrouter: token mint: warning:", text)
	}
	return nil
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

func inspectToken(args []string, in io.Reader, out io.Writer) error {
	f := flag.NewFlagSet("token inspect", flag.ContinueOnError)
	file := f.String("token", "", "file with the token; default the standard input")
	if err := parseFlags(f, args, out); err != nil {
		return err
	}
	token, err := readToken(*file, in)
	if err != nil {
		return err
	}
	head, claims, err := auth.Inspect(token)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{"header": head, "claims": claims})
}
