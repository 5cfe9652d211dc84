package auth

import (
	"fmt"
	"net/http"
)

// Admins decides what administrators may do on the operations routes. It is safe for concurrent use.
type Admins struct{ verifier *Verifier }

// NewAdmins returns the rules over a verifier for AdminAudience.
func NewAdmins(v *Verifier) (*Admins, error) {
	if v == nil || v.cfg.Audience != AdminAudience {
		return nil, fmt.Errorf("auth: admins: want a verifier for the audience %s", AdminAudience)
	}
	return &Admins{verifier: v}, nil
}

// Authenticate returns who sent the request if they may do what its method does: looking (GET, HEAD) needs the scope
// read, anything else the scope write. The error is an *Error.
func (a *Admins) Authenticate(r *http.Request) (Principal, error) {
	scope := WriteScope
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		scope = ReadScope
	}
	return a.Authorize(r, scope)
}

// Authorize returns who sent the request if they have the scope. The error is an *Error.
func (a *Admins) Authorize(r *http.Request, scope string) (Principal, error) {
	p, err := a.verifier.bearer(r)
	if err != nil {
		return Principal{}, err
	}
	if !p.Has(scope) {
		return p, forbidden(p, "lacks the scope %s", scope)
	}
	return p, nil
}
