package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"pdrouter/auth/keys"
	"pdrouter/internal/field"
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
		errs = append(errs, field.Errorf("issuer", "is empty"))
	}
	if strings.Contains(c.Issuer, "|") {
		errs = append(errs, field.Errorf("issuer", "is %q; want none with a |, which ends it in the names of tenants", c.Issuer))
	}
	if typeOf(c.Audience) == "" {
		errs = append(errs, field.Errorf("audience", "is %q; want %s, %s or %s", c.Audience, ClientAudience, MetadataAudience, AdminAudience))
	}
	if c.Leeway < 0 || c.Leeway > 5*time.Minute {
		errs = append(errs, field.Errorf("leeway", "is %v; want 0 to 5m", c.Leeway))
	}
	if c.MaxLifetime < 0 {
		errs = append(errs, field.Errorf("max_lifetime", "is %v; want more than 0", c.MaxLifetime))
	}
	if c.Cached < 0 {
		errs = append(errs, field.Errorf("cached", "is %d; want more than 0", c.Cached))
	}
	return errors.Join(errs...)
}

// Verifier checks signed tokens for one audience, of one issuer or several. It does no I/O and is safe for concurrent
// use.
type Verifier struct {
	cfg      VerifierConfig
	issuers  map[string]*issuer
	verdicts *verdicts
}

// NewVerifier returns a verifier of tokens of ours signed with one of keys, and of those of other issuers. Where each
// issuer has a profile of its own, cfg.Issuer is empty and keys nil.
func NewVerifier(cfg VerifierConfig, keys keys.Source, others ...Profile) (*Verifier, error) {
	cfg = cfg.withDefaults()
	profiles := others
	if cfg.Issuer != "" || keys != nil || len(others) == 0 {
		if err := cfg.Validate(); err != nil {
			return nil, fmt.Errorf("auth: verifier: %w", err)
		}
		own := Profile{Issuer: cfg.Issuer, Keys: keys, Leeway: cfg.Leeway, MaxLifetime: cfg.MaxLifetime}
		profiles = append([]Profile{own}, others...)
	}
	if typeOf(cfg.Audience) == "" {
		return nil, fmt.Errorf("auth: verifier: unknown audience %q", cfg.Audience)
	}
	v := &Verifier{cfg: cfg, issuers: map[string]*issuer{}, verdicts: newVerdicts(cfg.Cached)}
	for _, p := range profiles {
		if v.issuers[p.Issuer] != nil {
			return nil, fmt.Errorf("auth: verifier: issuer %q occurs twice", p.Issuer)
		}
		if p.Development && len(profiles) > 1 {
			return nil, fmt.Errorf("auth: verifier: issuer %q is for development, and not the only one", p.Issuer)
		}
		i, err := newIssuer(p, cfg.Audience)
		if err != nil {
			return nil, fmt.Errorf("auth: verifier: issuer %q: %w", p.Issuer, err)
		}
		v.issuers[p.Issuer] = i
	}
	return v, nil
}

// Authenticate returns who bears the token. A token seen before costs one digest: the verdict is remembered under the
// digest of all its bytes, for as long as the token and its key are valid. The error is an *Error.
func (v *Verifier) Authenticate(token string) (Principal, error) {
	return v.authenticate(token, present())
}

func (v *Verifier) authenticate(token string, at moment) (Principal, error) {
	if len(token) > maxTokenBytes {
		return Principal{}, invalid(fmt.Errorf("token has %d bytes", len(token)))
	}
	id := verdictID(token)
	if p, ok := v.verdicts.find(id, at); ok {
		return p, nil
	}
	got, _, err := v.verify(token, at)
	if err != nil {
		return Principal{}, err
	}
	v.verdicts.add(id, got, at)
	return got.who, nil
}

// Verify returns the claims of a valid token; of a foreign issuer's those alone that say who it is about. The error is
// an *Error: InsufficientScope for a valid token without the configured scopes, JWKSStale where keys are too old to
// tell, else InvalidToken.
func (v *Verifier) Verify(token string) (*Claims, error) {
	_, c, err := v.verify(token, present())
	return c, err
}

// verify is all that is checked. The token's iss decides by whose rules, and nothing else, before the signature is known
// to be good.
func (v *Verifier) verify(token string, at moment) (verdict, *Claims, error) {
	h, err := parseHeader(token)
	if err != nil {
		return verdict{}, nil, invalid(err)
	}
	said, err := strictClaims(token)
	if err != nil {
		return verdict{}, nil, invalid(err)
	}
	iss, _ := said["iss"].(string)
	i, ok := v.issuers[iss]
	if !ok {
		return verdict{}, nil, invalid(fmt.Errorf("unknown issuer %.200q", iss))
	}
	if !i.takes(h.typ, v.cfg.Audience) {
		return verdict{}, nil, invalid(fmt.Errorf("typ is %q, which is not of such tokens", h.typ))
	}
	key, set, err := i.key(h.kid, h.alg, at)
	if err != nil {
		return verdict{}, nil, err
	}
	if err := verifySignature(token, key); err != nil {
		return verdict{}, nil, invalid(err)
	}
	c, err := i.claims(said, v.cfg.Audience)
	if err != nil {
		return verdict{}, nil, invalid(fmt.Errorf("claims: %w", err))
	}
	if err := i.validator(v.cfg.Audience, at).Validate(c.RegisteredClaims); err != nil {
		return verdict{}, nil, invalid(err)
	}
	if err := i.check(&c, at); err != nil {
		return verdict{}, nil, invalid(err)
	}
	who, err := i.principal(&c, said)
	if err != nil {
		return verdict{}, nil, invalid(err)
	}
	for _, scope := range v.cfg.Scopes {
		if !who.Has(scope) {
			return verdict{}, nil, forbidden(who, "lacks the scope %s", scope)
		}
	}
	return verdict{who: who, until: c.ExpiresAt.Add(i.Leeway), issuer: i, keys: set}, &c, nil
}

// bearer returns who sent the request: whoever bears the token of its one Authorization header. The error is an *Error.
func (v *Verifier) bearer(r *http.Request) (Principal, error) {
	if headers := r.Header.Values("Authorization"); len(headers) > 1 {
		return Principal{}, invalid(fmt.Errorf("%d authorization headers", len(headers)))
	}
	token, err := bearer(r.Header.Get("Authorization"))
	if err != nil {
		return Principal{}, err
	}
	return v.Authenticate(token)
}
