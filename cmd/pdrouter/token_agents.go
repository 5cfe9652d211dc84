package main

import (
	"net/http"

	"pdrouter/auth"
	"pdrouter/metadata"
)

// agentsAuthorizer lets package auth decide about the metadata routes, which do not know it.
func agentsAuthorizer(a *auth.Agents) metadata.Authorizer {
	return metadata.AuthorizerFunc(func(r *http.Request, want metadata.Access) error {
		return a.Authorize(r, string(want.Action), want.Engine, string(want.Role))
	})
}
