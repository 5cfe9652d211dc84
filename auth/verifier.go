package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// VerifierConfig says which tokens are accepted.
type VerifierConfig struct {
	Issuer      string        `yaml:"issuer"`       // required
	Audience    string        `yaml:"audience"`     // required: ClientAudience, MetadataAudience or AdminAudience
	Scopes      []string      `yaml:"scopes"`       // a token must have all of these
	Leeway      time.Duration `yaml:"leeway"`       // for clocks that differ; default 30s
	MaxLifetime time.Duration `yaml:"max_lifetime"` // from now, or iat, to exp; default 24h
	Cached      int           `yaml:"cached"`       // verdicts remembered at most; default 10000
}

func (c VerifierConfig) withDefaults() VerifierConfig {
	if c.Leeway == 0 {
		c.Leeway = 30 * time.Second
	}
	if c.MaxLifetime == 0 {
		c.MaxLifetime = 24 * time.Hour
	}
	if c.Cached == 0 {
		c.Cached = 10_000
	}
	return c
}

// Validate reports every value that makes no sense. Zero durations mean the default; an empty issuer or audience would
// check nothing and is refused.
func (c VerifierConfig) Validate() error {
	var errs []error
	if c.Issuer == "" {
		errs = append(errs, errors.New("issuer is empty"))
	}
	if typeOf(c.Audience) == "" {
		errs = append(errs, fmt.Errorf("audience is %q; want %s, %s or %s", c.Audience, ClientAudience, MetadataAudience, AdminAudience))
	}
	if c.Leeway < 0 || c.Leeway > 5*time.Minute {
		errs = append(errs, fmt.Errorf("leeway is %v; want 0 to 5m", c.Leeway))
	}
	if c.MaxLifetime < 0 {
		errs = append(errs, fmt.Errorf("max_lifetime is %v; want more than 0", c.MaxLifetime))
	}
	if c.Cached < 0 {
		errs = append(errs, fmt.Errorf("cached is %d; want more than 0", c.Cached))
	}
	return errors.Join(errs...)
}

// Verifier checks signed tokens for one audience. It does no I/O and is safe for concurrent use.
type Verifier struct {
	cfg      VerifierConfig
	keys     KeySource
	parser   *jwt.Parser
	verdicts *verdicts
}

// NewVerifier returns a verifier of tokens signed with one of keys.
func NewVerifier(cfg VerifierConfig, keys KeySource) (*Verifier, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("auth: verifier: %w", err)
	}
	if keys == nil {
		return nil, errors.New("auth: verifier: no keys")
	}
	cfg = cfg.withDefaults()
	return &Verifier{
		cfg: cfg, keys: keys, verdicts: newVerdicts(cfg.Cached),
		parser: jwt.NewParser(
			jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(), jwt.WithJSONNumber(),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(cfg.Leeway),
			jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience),
		),
	}, nil
}

// Authenticate returns who bears the token. A token seen before costs one digest: the verdict is remembered under the
// SHA-256 of all its bytes, for as long as the token and its key are valid. The error is an *Error.
func (v *Verifier) Authenticate(token string) (Principal, error) {
	if len(token) > maxTokenBytes {
		return Principal{}, invalid(fmt.Errorf("token has %d bytes", len(token)))
	}
	now, keys := time.Now(), v.keys.current()
	id := verdictID(token)
	if p, ok := v.verdicts.find(id, keys, now); ok {
		return p, nil
	}
	c, err := v.Verify(token)
	if err != nil {
		return Principal{}, err
	}
	p := c.principal()
	v.verdicts.add(id, keys, p, c.ExpiresAt.Add(v.cfg.Leeway))
	return p, nil
}

// Verify returns the claims of a valid token. The error is an *Error: InsufficientScope for a valid token without the
// configured scopes, else InvalidToken.
func (v *Verifier) Verify(token string) (*Claims, error) {
	h, err := parseHeader(token)
	if err != nil {
		return nil, invalid(err)
	}
	want := typeOf(v.cfg.Audience)
	if h.typ != want && (want != "at+jwt" || h.typ != "application/at+jwt") { // RFC 9068 has two spellings
		return nil, invalid(fmt.Errorf("typ is %q; want %s", h.typ, want))
	}
	key, ok := v.keys.current().byID[h.kid]
	if !ok {
		return nil, invalid(fmt.Errorf("unknown key %q", h.kid))
	}
	if h.alg != key.algorithm {
		return nil, invalid(fmt.Errorf("alg is %q; key %s is for %s", h.alg, h.kid, key.algorithm))
	}
	var c Claims
	if _, err := v.parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return key.public, nil }); err != nil {
		return nil, invalid(err)
	}
	if err := strictClaims(token, v.cfg.Audience); err != nil {
		return nil, invalid(err)
	}
	if err := v.check(&c, time.Now()); err != nil {
		return nil, invalid(err)
	}
	for _, scope := range v.cfg.Scopes {
		if !(Principal{Scopes: strings.Fields(c.Scope)}).Has(scope) {
			return nil, forbidden("scope " + scope + " is missing")
		}
	}
	return &c, nil
}

// check is what the parser does not check.
func (v *Verifier) check(c *Claims, now time.Time) error {
	if c.Subject == "" {
		return errors.New("sub is missing")
	}
	if c.IssuedAt == nil {
		return errors.New("iat is missing")
	}
	if c.ExpiresAt.Sub(c.IssuedAt.Time) > v.cfg.MaxLifetime {
		return fmt.Errorf("lives %v; want at most %v", c.ExpiresAt.Sub(c.IssuedAt.Time), v.cfg.MaxLifetime)
	}
	if c.ExpiresAt.Sub(now) > v.cfg.MaxLifetime+v.cfg.Leeway {
		return fmt.Errorf("ends in %v; want at most %v", c.ExpiresAt.Sub(now), v.cfg.MaxLifetime)
	}
	return nil
}
