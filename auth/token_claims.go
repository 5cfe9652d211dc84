package auth

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"pdrouter/auth/keys"
)

// Confirm is the claim cnf (RFC 7800): the one key that the bearer signs with, whole.
type Confirm struct {
	Key confirmKey `json:"jwk"`
}

// confirmKey is an Ed25519 public key as a JWK (RFC 8037).
type confirmKey struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"` // base64url
}

// confirmation returns the claim for a key; nil for none.
func confirmation(k *keys.Key) (*Confirm, error) {
	if k == nil {
		return nil, nil
	}
	public, ok := k.PublicPart().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%v to confirm is for %s; want EdDSA", k, k.Algorithm())
	}
	return &Confirm{Key: confirmKey{Type: "OKP", Curve: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public)}}, nil
}

// principal returns what the claims of a valid token say of its bearer.
func (c *Claims) principal() Principal {
	p := Principal{
		Subject: c.Subject, TokenID: c.ID, Models: c.Models, Scopes: strings.Fields(c.Scope), Engine: c.Engine, Role: c.Role, Ranks: c.Ranks,
		Size: c.Size, Reads: c.Reads, Tenant: tenant(c.Issuer, c.Subject), Expires: c.ExpiresAt.Time,
	}
	if c.Limits != nil {
		p.Limits = *c.Limits
	}
	if c.Confirm != nil {
		p.Key, _ = base64.RawURLEncoding.DecodeString(c.Confirm.Key.X) // strictConfirm has read it
	}
	return p
}

// strictKinds checks that each claim is of its kind, in a token for this audience. A list that permits everything when
// it is empty must be left out instead: it may come from something that was to permit nothing.
func strictKinds(m map[string]any, audience string) error {
	for _, name := range []string{"iss", "sub", "jti", "client_id", "scope", "engine_id", "role", "size"} {
		if v, ok := m[name]; ok {
			if _, ok := v.(string); !ok {
				return fmt.Errorf("%s is no string", name)
			}
		}
	}
	switch m["role"] {
	case nil, "prefill", "decode", "both": // a null was refused above
	default:
		return fmt.Errorf("role is %.40q", m["role"])
	}
	for _, name := range []string{"models", "ranks", "reads"} {
		v, ok := m[name]
		if !ok {
			continue
		}
		list, ok := v.([]any)
		if !ok || len(list) == 0 && name != "reads" {
			return fmt.Errorf("%s is no list, or empty", name)
		}
		for _, one := range list {
			if s, ok := one.(string); !ok || s == "" || name == "ranks" && !isRank(s) {
				return fmt.Errorf("%s has %.40v", name, one)
			}
		}
	}
	if err := strictRanks(m); err != nil {
		return err
	}
	if v, ok := m["limits"]; ok {
		if err := strictLimits(v); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
	}
	if v, ok := m["cnf"]; ok {
		if audience != MetadataAudience {
			return fmt.Errorf("cnf in a token for %s", audience)
		}
		if err := strictConfirm(v); err != nil {
			return fmt.Errorf("cnf: %w", err)
		}
	}
	return nil
}

// strictRanks checks the claims ranks and size, whose kinds are right, against each other.
func strictRanks(m map[string]any) error {
	var ranks []string
	list, _ := m["ranks"].([]any)
	for _, one := range list {
		ranks = append(ranks, one.(string))
	}
	size, ok := m["size"].(string)
	if ok && size == "" {
		return errors.New("size is empty")
	}
	return checkSize(ranks, size)
}

// checkSize reports a size that is none, ranks outside of it, and ranks without one: how many ranks an engine has decides
// what each of them exchanges, so that the bearer must not choose it.
func checkSize(ranks []string, size string) error {
	if size == "" {
		if len(ranks) > 0 {
			return errors.New("ranks without size")
		}
		return nil
	}
	if !isRank(size) {
		return fmt.Errorf("size %.40q is not dp/pp/tp", size)
	}
	of := axes(size)
	for _, n := range of {
		if n < 1 {
			return fmt.Errorf("size %s has an axis without ranks", size)
		}
	}
	for _, r := range ranks {
		for i, n := range axes(r) {
			if n >= of[i] {
				return fmt.Errorf("rank %s is not one of size %s", r, size)
			}
		}
	}
	return nil
}

// axes returns the numbers of a text that isRank.
func axes(s string) (n [3]int) {
	for i, p := range strings.Split(s, "/") {
		n[i], _ = strconv.Atoi(p) // at most five digits
	}
	return n
}

func strictLimits(v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return errors.New("not an object")
	}
	for name, v := range m {
		switch name {
		case "requests_per_minute", "tokens_per_minute", "concurrent":
		default:
			return fmt.Errorf("unknown limit %.40q", name)
		}
		n, ok := v.(json.Number)
		if !ok {
			return fmt.Errorf("%s is no number", name)
		}
		if i, err := n.Int64(); err != nil || i < 0 || i > maxLimit {
			return fmt.Errorf("%s is %.40s; want a whole number from 0 to %d", name, n, int64(maxLimit))
		}
	}
	return nil
}

// maxLimit is the largest limit that a token may say: an int on every machine.
const maxLimit = 1<<31 - 1

// strictConfirm takes one Ed25519 public key and nothing else, above all no private part.
func strictConfirm(v any) error {
	m, ok := v.(map[string]any)
	if !ok || len(m) != 1 {
		return errors.New("want jwk and nothing else")
	}
	key, ok := m["jwk"].(map[string]any)
	if !ok {
		return errors.New("jwk is no object")
	}
	for name, v := range key {
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("jwk: %.40q is no string", name)
		}
		switch {
		case name == "kty" && s == "OKP", name == "crv" && s == "Ed25519", name == "alg" && s == "EdDSA", name == "use" && s == "sig":
		case name == "kid", name == "x":
		default:
			return fmt.Errorf("jwk: %.40q is not of an Ed25519 public key", name) // a private part is not quoted
		}
	}
	x, _ := key["x"].(string)
	public, err := base64.RawURLEncoding.Strict().DecodeString(x)
	if err != nil || len(public) != ed25519.PublicKeySize || key["kty"] == nil || key["crv"] == nil {
		return fmt.Errorf("jwk: want kty OKP, crv Ed25519 and x of %d bytes", ed25519.PublicKeySize)
	}
	return nil
}

// isRank reports whether s is "dp/pp/tp", each a number without leading zeros.
func isRank(s string) bool {
	parts := strings.Split(s, "/")
	for _, p := range parts {
		if p == "" || len(p) > 5 || p[0] == '0' && len(p) > 1 || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return len(parts) == 3
}
