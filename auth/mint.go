package auth

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth/keys"
)

// Grant is what a token is to say.
type Grant struct {
	Issuer   string
	Audience string // ClientAudience, MetadataAudience or AdminAudience
	Subject  string
	Scopes   []string
	TTL      time.Duration
	Models   []string  // for ClientAudience: the models it may name; none means all
	Engine   string    // for MetadataAudience: the bearer's own engine
	Role     string    // for MetadataAudience: of that engine
	Ranks    []string  // for MetadataAudience: ranks of that engine it may write, each "dp/pp/tp"; none means all
	Size     string    // for MetadataAudience: ranks of that engine along each axis, "dp/pp/tp"; needed where there are Ranks
	Reads    []string  // for MetadataAudience: engines it may read, besides those of the other role
	Confirm  *keys.Key // for MetadataAudience: the bearer's own Ed25519 key; nil for a token that is bound to none
	Limits   Limits    // for ClientAudience: what the bearer may use
}

func (g Grant) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if g.Issuer == "" || g.Subject == "" {
		bad("issuer is %q, subject is %q; want both", g.Issuer, g.Subject)
	}
	if typeOf(g.Audience) == "" {
		bad("audience is %q; want %s, %s or %s", g.Audience, ClientAudience, MetadataAudience, AdminAudience)
	}
	if g.TTL < time.Second {
		bad("ttl is %v; want at least 1s", g.TTL)
	}
	for _, s := range g.Scopes {
		if s == "" || strings.ContainsAny(s, " \"\\") {
			bad("scope %q is not one word", s)
		}
	}
	if g.Audience != MetadataAudience && (g.Engine != "" || g.Role != "" || len(g.Ranks) > 0 || g.Size != "" || len(g.Reads) > 0 || g.Confirm != nil) {
		bad("engine, role, ranks, size, reads and a key to confirm are only for the audience %s", MetadataAudience)
	}
	if g.Audience != ClientAudience && (len(g.Models) > 0 || g.Limits != Limits{}) {
		bad("models and limits are only for the audience %s", ClientAudience)
	}
	ranked := true
	if g.Models != nil && len(g.Models) == 0 || g.Ranks != nil && len(g.Ranks) == 0 {
		bad("models or ranks are an empty list; leave it out for all")
	}
	for _, r := range g.Ranks {
		if !isRank(r) {
			bad("rank %q is not dp/pp/tp", r)
			ranked = false
		}
	}
	if ranked {
		if err := checkSize(g.Ranks, g.Size); err != nil {
			errs = append(errs, err)
		}
	}
	if err := g.Limits.Validate(); err != nil {
		bad("limits: %w", err)
	}
	switch g.Role {
	case "", "prefill", "decode", "both":
	default:
		bad("role is %q; want prefill, decode or both", g.Role)
	}
	return errors.Join(errs...)
}

// Mint returns a token that says what is granted, signed with a private key.
func Mint(key *keys.Key, g Grant) (string, error) {
	if !key.Signs() {
		return "", fmt.Errorf("auth: mint: %v has no private part", key)
	}
	if err := g.validate(); err != nil {
		return "", fmt.Errorf("auth: mint: %w", err)
	}
	now := time.Now()
	confirm, err := confirmation(g.Confirm)
	if err != nil {
		return "", fmt.Errorf("auth: mint: %w", err)
	}
	var limits *Limits
	if g.Limits != (Limits{}) {
		limits = &g.Limits
	}
	t := jwt.NewWithClaims(jwt.GetSigningMethod(key.Algorithm()), &Claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: g.Issuer, Subject: g.Subject, Audience: jwt.ClaimStrings{g.Audience}, ID: rand.Text(),
			IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(g.TTL)),
		},
		ClientID: g.Subject, Scope: strings.Join(g.Scopes, " "), Models: g.Models, Engine: g.Engine, Role: g.Role,
		Ranks: g.Ranks, Size: g.Size, Reads: g.Reads, Limits: limits, Confirm: confirm,
	})
	t.Header["kid"], t.Header["typ"] = key.ID, typeOf(g.Audience)
	s, err := t.SignedString(key.SigningPart())
	if err != nil {
		return "", fmt.Errorf("auth: mint: %w", err)
	}
	if len(s) > maxTokenBytes {
		return "", fmt.Errorf("auth: mint: token would have %d bytes; want at most %d", len(s), maxTokenBytes)
	}
	return s, nil
}
