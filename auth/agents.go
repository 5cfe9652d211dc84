package auth

import (
	"fmt"
	"net/http"
	"slices"
)

// Agents decides what engines' agents and the gateway may do on the metadata and control routes. It is safe for
// concurrent use.
type Agents struct{ verifier *Verifier }

// NewAgents returns the rules over a verifier for MetadataAudience.
func NewAgents(v *Verifier) (*Agents, error) {
	if v == nil || v.cfg.Audience != MetadataAudience {
		return nil, fmt.Errorf("auth: agents: want a verifier for the audience %s", MetadataAudience)
	}
	return &Agents{verifier: v}, nil
}

// Authenticate returns who sent the request. The error is an *Error.
func (a *Agents) Authenticate(r *http.Request) (Principal, error) {
	return a.verifier.bearer(r)
}

// Wanted is what the sender of a request wants to do on the metadata routes.
type Wanted struct {
	Action string // "read", "write" or "list"
	Engine string // whose records; "" for "list"
	Rank   string // of a "write": "dp/pp/tp"
	Role   string // of a "read": the engine's; "" while that is not known
	Apart  string // of a "read": why the bearer's own engine has no need of these records; "" if nothing is known against it
}

// Authorize returns who sent the request if they may do this:
//   - "write" needs the scope write, the bearer's own engine, and one of the ranks that the token names, if it names
//     any;
//   - "read" needs the scope read, and the bearer's own engine, one of its claim reads, or one of a role that pairs
//     with its own and that nothing keeps apart from it. Where Role is "", only what no role could permit is refused;
//   - "list" needs the scope read.
//
// The error is an *Error.
func (a *Agents) Authorize(r *http.Request, want Wanted) (Principal, error) {
	p, err := a.Authenticate(r)
	if err != nil {
		return p, err
	}
	switch want.Action {
	case "write":
		switch {
		case !p.Has(WriteScope):
			return p, forbidden(p, "lacks the scope write")
		case p.Engine == "" || p.Engine != want.Engine:
			return p, forbidden(p, "an agent of engine %q may not write engine %q", p.Engine, want.Engine)
		case len(p.Ranks) > 0 && !slices.Contains(p.Ranks, want.Rank):
			return p, forbidden(p, "the agent of ranks %v may not write rank %s", p.Ranks, want.Rank)
		}
		return p, nil
	case "read", "list":
		switch {
		case !p.Has(ReadScope):
			return p, forbidden(p, "lacks the scope read")
		case want.Action == "list" || p.mayRead(want):
			return p, nil
		case want.Apart != "":
			return p, forbidden(p, "an agent of engine %q may not read engine %q: %s", p.Engine, want.Engine, want.Apart)
		}
		return p, forbidden(p, "an agent of engine %q, role %q, may not read engine %q, role %q", p.Engine, p.Role, want.Engine, want.Role)
	}
	return p, forbidden(p, "unknown action %q", want.Action)
}

func (p Principal) mayRead(want Wanted) bool {
	switch {
	case want.Engine != "" && want.Engine == p.Engine, slices.Contains(p.Reads, want.Engine):
		return true
	case want.Apart != "":
		return false
	}
	switch want.Role {
	case "":
		return p.Role == "prefill" || p.Role == "decode" || p.Role == "both" || want.Engine == "" && len(p.Reads) > 0
	case "prefill":
		return p.Role == "decode" || p.Role == "both"
	case "decode":
		return p.Role == "prefill" || p.Role == "both"
	case "both":
		return p.Role == "prefill" || p.Role == "decode" || p.Role == "both"
	}
	return false
}

// Plane returns nil if the sender of the request may watch this engine's transfers and cancel them: it needs the scope
// plane, and a token of that engine or of none (the gateway). The error is an *Error.
func (a *Agents) Plane(r *http.Request, engine string) error {
	p, err := a.Authenticate(r)
	if err != nil {
		return err
	}
	if !p.Has(PlaneScope) {
		return forbidden(p, "lacks the scope plane")
	}
	if p.Engine != "" && p.Engine != engine {
		return forbidden(p, "an agent of engine %q may not steer engine %q", p.Engine, engine)
	}
	return nil
}
