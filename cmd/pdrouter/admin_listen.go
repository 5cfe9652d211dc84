package main

import (
	"errors"
	"net"
	"net/http"

	"pdrouter/auth"
	"pdrouter/internal/field"
)

// validateAdmin checks the listener for administrators, and what it needs of other sections.
func (c fileConfig) validateAdmin() error {
	var errs []error
	if c.Listen.Admin == "" {
		return errors.Join(errs...)
	}
	if host, _, err := net.SplitHostPort(c.Listen.Admin); err == nil && !loopback(host) && !c.Listen.AdminTLS.on() {
		errs = append(errs, field.Errorf("listen.admin", "is %q, which others can reach, without TLS; want listen.admin_tls with cert_file and key_file, or a loopback address", c.Listen.Admin))
	}
	if !c.Auth.Admins.on() {
		errs = append(errs, field.Errorf("auth.admins.keys", "is missing; want the public keys of administrators' tokens, because listen.admin is set"))
	}
	return errors.Join(errs...)
}

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
