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
	headers := r.Header.Values("Authorization")
	if len(headers) > 1 {
		return Principal{}, invalid(fmt.Errorf("%d authorization headers", len(headers)))
	}
	token, err := bearer(r.Header.Get("Authorization"))
	if err != nil {
		return Principal{}, err
	}
	return a.verifier.Authenticate(token)
}

// Authorize returns who sent the request if they may do this to the engine:
//   - "write" needs the scope write and the bearer's own engine;
//   - "read" needs the scope read, and the bearer's own engine, one of its claim reads, or one of a role that pairs
//     with its own. Where role is "", only what no role could permit is refused;
//   - "list" needs the scope read.
//
// The error is an *Error.
func (a *Agents) Authorize(r *http.Request, action, engine, role string) (Principal, error) {
	p, err := a.Authenticate(r)
	if err != nil {
		return p, err
	}
	switch action {
	case "write":
		if !p.Has(WriteScope) {
			return p, forbidden(p.Subject + " lacks the scope write")
		}
		if p.Engine == "" || p.Engine != engine {
			return p, forbidden(fmt.Sprintf("%s is an agent of engine %q; it may not write engine %q", p.Subject, p.Engine, engine))
		}
		return p, nil
	case "read", "list":
		if !p.Has(ReadScope) {
			return p, forbidden(p.Subject + " lacks the scope read")
		}
		if action == "list" || p.mayRead(engine, role) {
			return p, nil
		}
		return p, forbidden(fmt.Sprintf("%s of engine %q, role %q, may not read engine %q, role %q", p.Subject, p.Engine, p.Role, engine, role))
	}
	return p, forbidden(fmt.Sprintf("unknown action %q", action))
}

func (p Principal) mayRead(engine, role string) bool {
	if engine != "" && engine == p.Engine || slices.Contains(p.Reads, engine) {
		return true
	}
	switch role {
	case "":
		return p.Role != "" || engine == "" && len(p.Reads) > 0
	case "prefill":
		return p.Role == "decode" || p.Role == "both"
	case "decode":
		return p.Role == "prefill" || p.Role == "both"
	case "both":
		return p.Role != ""
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
		return forbidden(p.Subject + " lacks the scope plane")
	}
	if p.Engine != "" && p.Engine != engine {
		return forbidden(fmt.Sprintf("%s is an agent of engine %q; it may not steer engine %q", p.Subject, p.Engine, engine))
	}
	return nil
}
