package auth

import (
	"errors"
	"slices"
	"time"

	"pdrouter/internal/field"
)

// The audiences of tokens, one per listener. A token for one is refused by the others.
const (
	ClientAudience   = "pdrouter"
	MetadataAudience = "pdrouter-metadata"
	AdminAudience    = "pdrouter-admin"
)

// The scopes of a token for MetadataAudience.
const (
	WriteScope = "write" // publish and delete the records of the bearer's own engine
	ReadScope  = "read"  // read the records of engines that the bearer may pair with
	PlaneScope = "plane" // watch an engine's transfers and cancel them
)

// PriorityScope lets a client say how urgent its requests are.
const PriorityScope = "priority"

// EnginesScope lets the bearer of a token for AdminAudience add, drain and remove engines; ReadScope lets it look.
const EnginesScope = "engines"

// Principal is an authenticated caller. Its slices are shared: callers must not change them.
type Principal struct {
	Subject string
	TokenID string   // the token's jti; "" for an API key, or a token without one
	Models  []string // the models it may name; empty means all
	Scopes  []string
	Engine  string    // the engine whose agent it is; "" for others
	Role    string    // of that engine: "prefill", "decode", "both"
	Ranks   []string  // of that engine, each "dp/pp/tp": those it may write; empty means all
	Size    string    // ranks of that engine along each axis, "dp/pp/tp", which its records must have; never "" with Ranks
	Reads   []string  // engines whose records it may read, whatever their role
	Key     []byte    // the Ed25519 public key that the token is bound to (RFC 7800); nil if to none
	Tenant  string    // whom its use is counted under: an API key's name, or issuer|subject
	Limits  Limits    // of its use
	Expires time.Time // when the credentials end; zero means never
}

// Limits bound what one tenant may use. Zero says nothing: what the gateway sets for everybody holds.
type Limits struct {
	Requests   int `json:"requests_per_minute,omitempty" yaml:"requests_per_minute"` // begun in a minute
	Tokens     int `json:"tokens_per_minute,omitempty" yaml:"tokens_per_minute"`     // read and written in a minute
	Concurrent int `json:"concurrent,omitempty" yaml:"concurrent"`                   // requests under way at once
}

// Validate reports limits below zero.
func (l Limits) Validate() error {
	var errs []error
	for _, at := range []struct {
		key string
		n   int
	}{{"requests_per_minute", l.Requests}, {"tokens_per_minute", l.Tokens}, {"concurrent", l.Concurrent}} {
		if at.n < 0 {
			errs = append(errs, field.Errorf(at.key, "is %d; want 0 or more", at.n))
		}
	}
	return errors.Join(errs...)
}

// tenant returns the name of a tenant of an issuer. No issuer and no API key has a | in its name, so that neither two
// issuers nor an issuer and a key can speak of the same one.
func tenant(issuer, name string) string { return issuer + "|" + name }

// Permits reports whether the caller may name this model.
func (p Principal) Permits(model string) bool {
	return len(p.Models) == 0 || slices.Contains(p.Models, model)
}

// Has reports whether the caller was given the scope.
func (p Principal) Has(scope string) bool { return slices.Contains(p.Scopes, scope) }
