package auth

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth/keys"
)

// verifySignature checks who signed a token whose alg is the key's. The library's reader of tokens would decode header and
// claims another time, to other values than those that were looked at.
func verifySignature(token string, key *keys.Key) error {
	dot := strings.LastIndexByte(token, '.')
	signature, err := base64.RawURLEncoding.Strict().DecodeString(token[dot+1:])
	if err != nil {
		return errors.New("signature is not base64url")
	}
	method := jwt.GetSigningMethod(key.Algorithm())
	if method == nil {
		return fmt.Errorf("no such algorithm as %s", key.Algorithm())
	}
	return method.Verify(token[:dot], signature, key.PublicPart())
}

// claims returns what a signed token claims. Of a foreign issuer's that is only who it is about, and when.
func (i *issuer) claims(said map[string]any, audience string) (Claims, error) {
	if i.foreign() {
		registered, err := registeredClaims(said)
		return Claims{RegisteredClaims: registered}, err
	}
	return ownClaims(said, audience)
}

// validator returns what checks the registered claims of the issuer's tokens at one moment.
func (i *issuer) validator(audience string, at moment) *jwt.Validator {
	return jwt.NewValidator(
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(i.Leeway), jwt.WithIssuer(i.Issuer), jwt.WithAudience(audience),
		jwt.WithTimeFunc(func() time.Time { return at.wall }),
	)
}

// check is what the validator does not check.
func (i *issuer) check(c *Claims, at moment) error {
	if c.Subject == "" {
		return errors.New("sub is missing")
	}
	if !strings.HasPrefix(c.Subject, i.SubjectPrefix) {
		return fmt.Errorf("sub does not begin with %s", i.SubjectPrefix)
	}
	if i.SoleAudience && len(c.Audience) != 1 {
		return fmt.Errorf("aud has %d values; want ours alone", len(c.Audience))
	}
	if c.IssuedAt == nil && !i.NoIssuedAt {
		return errors.New("iat is missing")
	}
	if c.IssuedAt != nil && c.ExpiresAt.Sub(c.IssuedAt.Time) > i.MaxLifetime {
		return fmt.Errorf("lives %v; want at most %v", c.ExpiresAt.Sub(c.IssuedAt.Time), i.MaxLifetime)
	}
	if c.ExpiresAt.Sub(at.wall) > i.MaxLifetime+i.Leeway {
		return fmt.Errorf("ends in %v; want at most %v", c.ExpiresAt.Sub(at.wall), i.MaxLifetime)
	}
	return nil
}

// principal returns who bears a token whose signature and times are good. said are its claims as they were written.
func (i *issuer) principal(c *Claims, said map[string]any) (Principal, error) {
	if !i.foreign() {
		return c.principal(), nil
	}
	if _, ok := said["cnf"]; ok { // bound to a key that nobody here would ask for
		return Principal{}, errors.New("cnf in a token of a foreign issuer")
	}
	p, err := i.grant(c.Subject, podOf(said))
	p.TokenID, p.Expires = c.ID, c.ExpiresAt.Time
	return p, err
}
