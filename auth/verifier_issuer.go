package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// parser returns what checks the signature and the registered claims of the issuer's tokens at one moment.
func (i *issuer) parser(audience string, at moment) *jwt.Parser {
	return jwt.NewParser(
		jwt.WithValidMethods(i.Algorithms), jwt.WithStrictDecoding(), jwt.WithJSONNumber(), jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(), jwt.WithLeeway(i.Leeway), jwt.WithIssuer(i.Issuer), jwt.WithAudience(audience),
		jwt.WithTimeFunc(func() time.Time { return at.wall }),
	)
}

// check is what the parser does not check.
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
	if i.SingleUse && c.ID == "" {
		return errors.New("jti is missing")
	}
	return nil
}

// principal returns who bears a token whose signature and times are good. said are its claims as they were written.
func (i *issuer) principal(c *Claims, said map[string]any, audience string) (Principal, error) {
	if !i.foreign() {
		if err := strictKinds(said, audience); err != nil {
			return Principal{}, fmt.Errorf("claims: %w", err)
		}
		return c.principal(), nil
	}
	if _, ok := said["cnf"]; ok { // bound to a key that nobody here would ask for
		return Principal{}, errors.New("cnf in a token of a foreign issuer")
	}
	p, err := i.grant(c.Subject, podOf(said))
	p.Expires = c.ExpiresAt.Time
	return p, err
}
