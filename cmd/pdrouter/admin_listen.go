package main

import (
	"context"
	"errors"
	"net/http"

	"pdrouter/auth"
	"pdrouter/internal/adminapi"
	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/internal/shared"
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

// openEngines makes what knows of engines besides the file, and the routes of administrators who add and remove some.
func (g *gateway) openEngines(l *configfile.Loaded) {
	g.board = shared.NewBoard(g.redis, l.Metadata.Redis.WithDefaults().Prefix, "engines", g.signer, g.log)
	const name = "sources and administrators"
	store := overrides.NewStore(g.board, g.redis == nil || g.signer != nil, g.log)
	apply := func(ctx context.Context, m fleetview.Merge) error { return g.applied.engines(ctx, name, m) }
	g.engines = fleetview.New(l.Config, store, g.router.InFlight, apply, g.log)
	g.applied.sources = []source{{name, g.engines.Merge}} // also for a reload that comes before anything was found
	g.applied.without = g.engines.LeaveOut
	g.applied.told(g.engines.Follow)
	g.adminRoutes = adminapi.New(adminapi.Config{Auth: presentAdmins{g}, View: g.engines, Overrides: store, Stats: g.router.Stats, Requests: g.meters.adminRequests, Log: g.log})
}
