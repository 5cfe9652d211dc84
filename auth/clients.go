package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

// ClientsConfig says how clients of the OpenAI routes prove who they are. At least one of APIKeys and Verifier
// must be set.
type ClientsConfig struct {
	APIKeys  *APIKeys  // nil: no API keys
	Verifier *Verifier // nil: no tokens
}

// Clients authenticates clients of the OpenAI routes by API key or token. It is safe for concurrent use.
type Clients struct {
	keys     *APIKeys
	verifier *Verifier
}

// NewClients returns an authenticator, or an error if the configuration would admit nobody.
func NewClients(cfg ClientsConfig) (*Clients, error) {
	if cfg.APIKeys == nil && cfg.Verifier == nil {
		return nil, errors.New("auth: clients: neither API keys nor a token verifier is configured")
	}
	return &Clients{keys: cfg.APIKeys, verifier: cfg.Verifier}, nil
}

// Authenticate returns who sent this value of the Authorization header. The error is an *Error.
// It does no I/O; a verdict on a token that was seen before costs one digest.
func (c *Clients) Authenticate(authorization string) (Principal, error) {
	token, err := bearer(authorization)
	if err != nil {
		return Principal{}, err
	}
	if c.keys != nil && (c.verifier == nil || strings.HasPrefix(token, apiKeyPrefix) || strings.Count(token, ".") != 2) {
		if p, ok := c.keys.find(sha256.Sum256([]byte(token))); ok {
			return p, nil
		}
		return Principal{}, invalid(errors.New("unknown API key"))
	}
	if c.verifier == nil {
		return Principal{}, invalid(errors.New("unknown API key"))
	}
	return c.verifier.Authenticate(token)
}

// bearer takes the token out of an Authorization header. The scheme's case does not matter (RFC 9110 §11.1).
func bearer(authorization string) (string, error) {
	if authorization == "" {
		return "", &Error{Code: NoCredentials}
	}
	if len(authorization) > maxTokenBytes+len("Bearer ") {
		return "", invalid(fmt.Errorf("authorization header has %d bytes", len(authorization)))
	}
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", &Error{Code: NoCredentials, Err: errors.New("not a bearer token")}
	}
	return token, nil
}
