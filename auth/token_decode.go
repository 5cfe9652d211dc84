package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxDate is the last second of the year 9999, behind which dates cannot be written any more.
const maxDate = 253402300799

// registeredClaims returns the claims that every token has (RFC 7519 §4.1), from what strictClaims found.
func registeredClaims(m map[string]any) (c jwt.RegisteredClaims, err error) {
	for _, at := range [...]struct {
		name string
		to   *string
	}{{"iss", &c.Issuer}, {"sub", &c.Subject}, {"jti", &c.ID}} {
		if v, ok := m[at.name]; ok {
			if *at.to, ok = v.(string); !ok {
				return c, fmt.Errorf("%s is no string", at.name)
			}
		}
	}
	for _, at := range [...]struct {
		name string
		to   **jwt.NumericDate
	}{{"exp", &c.ExpiresAt}, {"nbf", &c.NotBefore}, {"iat", &c.IssuedAt}} {
		if v, ok := m[at.name]; ok {
			if *at.to, err = numericDate(v); err != nil {
				return c, fmt.Errorf("%s: %w", at.name, err)
			}
		}
	}
	switch aud := m["aud"].(type) {
	case string:
		c.Audience = jwt.ClaimStrings{aud}
	case []any:
		if c.Audience, err = stringsOf(aud); err != nil {
			return c, fmt.Errorf("aud: %w", err)
		}
	default:
		return c, errors.New("aud is neither a string nor a list")
	}
	return c, nil
}

// numericDate returns a moment to the second. A fraction of one is cut off.
func numericDate(v any) (*jwt.NumericDate, error) {
	n, ok := v.(json.Number)
	if !ok {
		return nil, errors.New("no number")
	}
	seconds, err := n.Float64()
	if err != nil || seconds < 0 || seconds > maxDate {
		return nil, fmt.Errorf("%.40s is no date", n)
	}
	return &jwt.NumericDate{Time: time.Unix(int64(math.Trunc(seconds)), 0)}, nil
}

// ownClaims returns the claims of a token of ours for this audience, from what strictClaims found.
func ownClaims(m map[string]any, audience string) (Claims, error) {
	if err := strictKinds(m, audience); err != nil {
		return Claims{}, err
	}
	registered, err := registeredClaims(m)
	if err != nil {
		return Claims{}, err
	}
	c := Claims{RegisteredClaims: registered}
	// From here on strictKinds has seen to it that everything is of its kind.
	c.ClientID, _ = m["client_id"].(string)
	c.Scope, _ = m["scope"].(string)
	c.Engine, _ = m["engine_id"].(string)
	c.Role, _ = m["role"].(string)
	c.Size, _ = m["size"].(string)
	for _, at := range [...]struct {
		name string
		to   *[]string
	}{{"models", &c.Models}, {"ranks", &c.Ranks}, {"reads", &c.Reads}} {
		if list, ok := m[at.name].([]any); ok {
			if *at.to, err = stringsOf(list); err != nil {
				return Claims{}, fmt.Errorf("%s: %w", at.name, err)
			}
		}
	}
	if l, ok := m["limits"].(map[string]any); ok {
		number := func(name string) int {
			n, _ := l[name].(json.Number)
			i, _ := n.Int64()
			return int(i)
		}
		c.Limits = &Limits{Requests: number("requests_per_minute"), Tokens: number("tokens_per_minute"), Concurrent: number("concurrent")}
	}
	if cnf, ok := m["cnf"].(map[string]any); ok {
		key, _ := cnf["jwk"].(map[string]any)
		c.Confirm = &Confirm{}
		c.Confirm.Key.Type, _ = key["kty"].(string)
		c.Confirm.Key.Curve, _ = key["crv"].(string)
		c.Confirm.Key.X, _ = key["x"].(string)
	}
	return c, nil
}

// stringsOf returns a list of strings, or an error if it has anything else.
func stringsOf(list []any) ([]string, error) {
	all := make([]string, len(list))
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("element %d is no string", i)
		}
		all[i] = s
	}
	return all, nil
}
