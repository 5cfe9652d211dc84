package gateway

import (
	"errors"
	"net/http"

	"pdrouter/auth"
	"pdrouter/internal/adminapi"
	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/internal/shared"
	"pdrouter/internal/ui"
)

// currentAdmins asks whoever the current snapshot has for administrators.
type currentAdmins struct{ g *Gateway }

// Authorize returns who sent a request if they have the scope.
func (p currentAdmins) Authorize(r *http.Request, scope string) (auth.Principal, error) {
	admins := p.g.admin()
	if admins == nil { // the listener is closed to others than those who had connected before
		return auth.Principal{}, &auth.Error{Code: auth.InvalidToken, Err: errors.New("auth.admins has no keys")}
	}
	return admins.Authorize(r, scope)
}

// openEngines makes what knows of engines besides the file, and the routes of administrators who add and remove some.
func (g *Gateway) openEngines(l *configfile.Loaded) {
	g.overrides = shared.NewMap(g.redis, l.Metadata.Redis.WithDefaults().Prefix, "overrides", g.signer, g.sharing)
	store := overrides.NewStore(g.overrides, g.redis == nil || g.signer != nil, g.log)
	g.engines = fleetview.New(l.Config, store, g.busy, g.controller.engines, g.log)
	g.controller.merge = g.engines.Merge // also for a reload that comes before anything was found
	g.controller.without = g.engines.LeaveOut
	g.controller.subscribe(g.engines.Follow)
	mux := http.NewServeMux()
	mux.Handle("/admin/", adminapi.New(adminapi.Config{Auth: currentAdmins{g}, View: g.engines, Overrides: store, Stats: g.router.Stats, Requests: g.metrics.adminRequests, Log: g.log}))
	more := g.lookRoutes()
	g.diagnosisRoutes(more)
	mux.Handle("/", tokenOnly(currentAdmins{g}, more, g.log))
	g.adminRoutes = ui.Handler(mux)
}

// busy reports whether an engine that is to be removed is needed: by requests, or as it has conversations that are to be moved.
func (g *Gateway) busy(engine string) bool {
	return g.router.Busy(engine) || g.router.MovesLeft(engine) > 0
}
