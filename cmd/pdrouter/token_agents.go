package main

import (
	"net/http"

	"pdrouter/auth"
	"pdrouter/metadata"
)

// agentsAuthorizer lets package auth decide about the metadata routes, which do not know it.
func agentsAuthorizer(a *auth.Agents) metadata.Authorizer {
	return metadata.AuthorizerFunc(func(r *http.Request, want metadata.Access) (metadata.Caller, error) {
		p, err := a.Authorize(r, string(want.Action), want.Engine, string(want.Role))
		return metadata.Caller{Subject: p.Subject, Engine: p.Engine, Reads: p.Reads}, err
	})
}
