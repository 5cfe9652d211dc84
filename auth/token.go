package auth

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth/internal/strictjson"
	"pdrouter/auth/keys"
)

const (
	maxTokenBytes = 8 << 10
)

// Claims are what a token says. Scope is a list with spaces between (RFC 8693 §4.2).
type Claims struct {
	jwt.RegisteredClaims
	ClientID string   `json:"client_id,omitempty"`
	Scope    string   `json:"scope,omitempty"`
	Models   []string `json:"models,omitempty"`    // client tokens: the models it may name; none means all
	Engine   string   `json:"engine_id,omitempty"` // agent tokens: the name of the bearer's own engine
	Role     string   `json:"role,omitempty"`      // agent tokens: of that engine
	Ranks    []string `json:"ranks,omitempty"`     // agent tokens: ranks of that engine it may write, each "dp/pp/tp"; none means all
	Size     string   `json:"size,omitempty"`      // agent tokens: ranks of that engine along each axis, "dp/pp/tp"; never absent where there are ranks
	Reads    []string `json:"reads,omitempty"`     // agent tokens: engines it may read besides those of the other role
	Limits   *Limits  `json:"limits,omitempty"`    // client tokens: what the bearer may use
	Confirm  *Confirm `json:"cnf,omitempty"`       // agent tokens: the key that the bearer signs with
}

// isClaim reports whether name is that of a claim that is read. A token with one in another case is refused: readers
// disagree about it.
func isClaim(name string) bool {
	switch name {
	case "iss", "sub", "aud", "exp", "nbf", "iat", "jti", "client_id", "scope", "models", "engine_id", "role", "ranks", "size", "reads",
		"limits", "cnf", "kubernetes.io":
		return true
	}
	return false
}

// typeOf returns the explicit type of tokens for an audience (RFC 8725 §3.11), so that no token passes for one of
// another kind; "" for an unknown audience.
func typeOf(audience string) string {
	switch audience {
	case ClientAudience:
		return "at+jwt"
	case MetadataAudience:
		return "pdrouter-agent+jwt"
	case AdminAudience:
		return "pdrouter-admin+jwt"
	}
	return ""
}

// header is the only shape of a token's header that is taken.
type header struct{ alg, kid, typ string }

// parseHeader reads the header without trusting it. Its fields are alg, kid and, not for every issuer, typ: crit, jku,
// jwk, x5u, x5c and whatever else could ask a reader for something are refused.
func parseHeader(token string) (header, error) {
	if len(token) > maxTokenBytes {
		return header{}, fmt.Errorf("token has %d bytes; want at most %d", len(token), maxTokenBytes)
	}
	if strings.Count(token, ".") != 2 {
		return header{}, errors.New("token has not three parts")
	}
	first, _, _ := strings.Cut(token, ".")
	b, err := base64.RawURLEncoding.Strict().DecodeString(first)
	if err != nil {
		return header{}, errors.New("header is not base64url")
	}
	m, err := strictjson.Object(b)
	if err != nil {
		return header{}, fmt.Errorf("header: %w", err)
	}
	var h header
	if _, ok := m["typ"]; !ok {
		m["typ"] = ""
	}
	if len(m) != 3 {
		return header{}, errors.New("header has other fields than alg, kid and typ")
	}
	for _, f := range [...]struct {
		name string
		to   *string
	}{{"alg", &h.alg}, {"kid", &h.kid}, {"typ", &h.typ}} {
		s, ok := m[f.name].(string)
		if !ok || s == "" && f.name != "typ" || len(s) > keys.MaxID {
			return header{}, fmt.Errorf("header: %s is missing or no short string", f.name)
		}
		*f.to = s
	}
	return h, nil
}

// Inspect returns the header and the claims of a token as JSON objects, without checking anything but their form.
func Inspect(token string) (head, claims map[string]any, err error) {
	if len(token) > maxTokenBytes || strings.Count(token, ".") != 2 {
		return nil, nil, errors.New("auth: inspect: not a token")
	}
	parts := strings.Split(token, ".")
	var out [2]map[string]any
	for i := range out {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			return nil, nil, errors.New("auth: inspect: not base64url")
		}
		if out[i], err = strictjson.Object(b); err != nil {
			return nil, nil, fmt.Errorf("auth: inspect: %w", err)
		}
	}
	return out[0], out[1], nil
}

// strictClaims reads the claims without trusting them, and refuses what their decoder would let pass.
func strictClaims(token string) (map[string]any, error) {
	_, rest, _ := strings.Cut(token, ".")
	part, _, _ := strings.Cut(rest, ".")
	b, err := base64.RawURLEncoding.Strict().DecodeString(part)
	if err != nil {
		return nil, errors.New("claims are not base64url")
	}
	m, err := strictjson.Object(b)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	for name := range m {
		if as := strictjson.Fold(name); as != name && isClaim(as) {
			return nil, fmt.Errorf("claims: %.20q stands for %s", name, as)
		}
	}
	return m, nil
}

// podOf returns the pod that a Kubernetes token is bound to; "" if to none.
func podOf(claims map[string]any) string {
	bound, _ := claims["kubernetes.io"].(map[string]any)
	pod, _ := bound["pod"].(map[string]any)
	name, _ := pod["name"].(string)
	return name
}
