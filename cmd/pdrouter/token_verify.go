package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
	"pdrouter/internal/reload"
)

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
	if err := notMeant(token, cfg.Issuer, cfg.Audience); err != nil {
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
