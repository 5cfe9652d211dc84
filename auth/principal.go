package auth

import (
	"slices"
	"time"
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

// Principal is an authenticated caller. Its slices are shared: callers must not change them.
type Principal struct {
	Subject string
	Models  []string // the models it may name; empty means all
	Scopes  []string
	Engine  string    // the engine whose agent it is; "" for others
	Role    string    // of that engine: "prefill", "decode", "both"
	Reads   []string  // engines whose records it may read, whatever their role
	Expires time.Time // when the credentials end; zero means never
}

// Permits reports whether the caller may name this model.
func (p Principal) Permits(model string) bool {
	return len(p.Models) == 0 || slices.Contains(p.Models, model)
}

// Has reports whether the caller was given the scope.
func (p Principal) Has(scope string) bool { return slices.Contains(p.Scopes, scope) }
