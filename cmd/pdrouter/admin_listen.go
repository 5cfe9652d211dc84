package main

import (
	"errors"
	"net/http"

	"pdrouter/auth"
)

// presentAdmins asks whoever the present edition has for administrators.
type presentAdmins struct{ g *gateway }

// Authorize returns who sent a request if they have the scope.
func (p presentAdmins) Authorize(r *http.Request, scope string) (auth.Principal, error) {
	admins := p.g.admin()
	if admins == nil { // the listener is closed to others than those who had connected before
		return auth.Principal{}, &auth.Error{Code: auth.InvalidToken, Err: errors.New("auth.admins has no keys")}
	}
	return admins.Authorize(r, scope)
}
