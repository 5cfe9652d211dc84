package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
	"pdrouter/internal/reload"
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

// verifyCommand tells an operator whether a gateway with these keys would accept a token, and if not, why: which is more
// than any gateway tells the bearer.
func verifyCommand() *cobra.Command {
	c := &cobra.Command{Use: "verify", Short: "Say whether a gateway with these keys would accept a token, and why not.", Args: cobra.NoArgs}
	f := c.Flags()
	var cfg auth.VerifierConfig
	keyFiles := f.String("keys", "", "files or folders of the trusted keys, with commas between")
	set := f.String("jwks", "", "file or URL of the issuer's key set, in place of --keys")
	kind := f.String("kind", configfile.KindOwn, "what the issuer's tokens look like: pdrouter, kubernetes or spiffe")
	file := f.String("token", "", "file with the token; default the standard input")
	scope := f.String("scope", "", "scopes that the token must have, with spaces between")
	f.StringVar(&cfg.Issuer, "issuer", defaultIssuer, "issuer")
	f.StringVar(&cfg.Audience, "audience", "", "pdrouter, pdrouter-metadata or pdrouter-admin")
	f.DurationVar(&cfg.MaxLifetime, "max-lifetime", 0, "longest time from iat to exp; default 24h")
	c.MarkFlagsOneRequired("keys", "jwks")
	c.MarkFlagsMutuallyExclusive("keys", "jwks")
	required(c, "audience")
	c.RunE = func(c *cobra.Command, _ []string) error {
		i := configfile.IssuerAuth{Issuer: cfg.Issuer, Kind: *kind, MaxLifetime: cfg.MaxLifetime, Keys: splitList(*keyFiles)}
		if *set != "" {
			i.JWKS = keys.JWKSConfig{URL: *set}
		}
		token, err := readToken(*file, c.InOrStdin())
		if err != nil {
			return err
		}
		return verifyToken(c.Context(), cfg, i, strings.Fields(*scope), token, c.OutOrStdout())
	}
	return c
}

func verifyToken(ctx context.Context, cfg auth.VerifierConfig, i configfile.IssuerAuth, scopes []string, token string, out io.Writer) (err error) {
	switch cfg.Audience {
	case auth.ClientAudience, auth.MetadataAudience, auth.AdminAudience:
	default:
		return fmt.Errorf("token verify: want --audience %s, %s or %s", auth.ClientAudience, auth.MetadataAudience, auth.AdminAudience)
	}
	if err := wrongToken(token, cfg.Issuer, cfg.Audience); err != nil {
		return err
	}
	if i.Kind == configfile.KindKubernetes || i.Kind == configfile.KindSPIFFE {
		if i.Subjects, err = anySubject(cfg.Audience, token); err != nil {
			return err
		}
	}
	if err := i.Validate(cfg.Audience); err != nil {
		return fmt.Errorf("token verify: %w", err)
	}
	var files reload.Credentials
	profiles, err := (configfile.TokenAuth{Issuers: []configfile.IssuerAuth{i}}).Profiles(cfg.Audience, &files)
	if err != nil {
		return err
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{Audience: cfg.Audience, Scopes: scopes}, nil, profiles...)
	if err != nil {
		return err
	}
	if len(files.Sets) > 0 {
		files.Log = slog.New(slog.NewTextHandler(out, nil)) // why a set cannot be had
		asking, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = files.Run()(asking)
		}()
		files.Asked(asking)
		defer func() { stop(); <-ended }()
	}
	p, err := v.Authenticate(token)
	if err != nil {
		return fmt.Errorf("token verify: refused: %w", err)
	}
	fmt.Fprintf(out, "valid: subject %s, until %s\n", p.Subject, p.Expires.UTC().Format(time.RFC3339))
	return nil
}

// anySubject returns a rule that fits the token's own subject: which rules a gateway has is for its configuration.
func anySubject(audience, token string) ([]auth.SubjectRule, error) {
	_, claims, err := auth.Inspect(token)
	if err != nil {
		return nil, err
	}
	subject, _ := claims["sub"].(string)
	rule := auth.SubjectRule{Subject: subject}
	if audience != auth.ClientAudience {
		rule.Scopes = []string{auth.ReadScope}
	}
	return []auth.SubjectRule{rule}, nil
}

// parseLimits reads "requests=60,tokens=10000,concurrent=4"; any of them may be left out.
func parseLimits(s string) (auth.Limits, error) {
	var l auth.Limits
	for _, one := range splitList(s) {
		name, value, _ := strings.Cut(one, "=")
		n, err := strconv.Atoi(value)
		to := map[string]*int{"requests": &l.Requests, "tokens": &l.Tokens, "concurrent": &l.Concurrent}[name]
		if err != nil || n < 0 || to == nil {
			return l, fmt.Errorf("token mint: limit %q; want requests=N, tokens=N or concurrent=N", one)
		}
		*to = n
	}
	return l, nil
}

// usualLifetime is the longest that a token may live where max_lifetime is not set.
const usualLifetime = 24 * time.Hour

// mintWarnings are what is allowed of a token and seldom intended.
func mintWarnings(g auth.Grant) []string {
	var all []string
	words := map[string][]string{
		auth.MetadataAudience: {auth.WriteScope, auth.ReadScope, auth.PlaneScope},
		auth.AdminAudience:    {auth.ReadScope, auth.WriteScope, auth.EnginesScope},
	}[g.Audience]
	for _, scope := range g.Scopes {
		if len(words) > 0 && !slices.Contains(words, scope) {
			all = append(all, fmt.Sprintf("the scope %s gives nothing; those of %s are %s", scope, g.Audience, strings.Join(words, ", ")))
		}
	}
	if len(words) > 0 && len(g.Scopes) == 0 {
		all = append(all, fmt.Sprintf("without --scope the token may do nothing; the scopes of %s are %s", g.Audience, strings.Join(words, ", ")))
	}
	if g.Role != "" && g.Engine == "" {
		all = append(all, "--role without --engine: the bearer has no engine to publish for, and reads those of the roles that pair with it")
	}
	if g.TTL > usualLifetime {
		all = append(all, fmt.Sprintf("the token lives %v: it is refused wherever max_lifetime is not set above %v", g.TTL, usualLifetime))
	}
	return all
}

// wrongToken says what an operator has taken for a token of this issuer and audience, nil if nothing shows. It trusts nothing
// that the token says.
func wrongToken(token, issuer, audience string) error {
	if auth.IsAPIKey(token) {
		return errors.New("token verify: this is an API key, no token")
	}
	_, claims, err := auth.Inspect(token)
	if err != nil {
		return nil // verifying says more
	}
	if got, ok := claims["iss"].(string); ok && got != issuer {
		return fmt.Errorf("token verify: refused: iss is %s; want %s", got, issuer)
	}
	var audiences []string
	switch aud := claims["aud"].(type) {
	case string:
		audiences = []string{aud}
	case []any:
		for _, one := range aud {
			audiences = append(audiences, fmt.Sprint(one))
		}
	}
	if len(audiences) > 0 && !slices.Contains(audiences, audience) {
		return fmt.Errorf("token verify: refused: a token for %s; you asked for %s", strings.Join(audiences, ", "), audience)
	}
	return nil
}
