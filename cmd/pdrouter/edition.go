package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"reflect"
	"slices"

	"pdrouter/auth"
	"pdrouter/internal/configfile"
	"pdrouter/internal/field"
	"pdrouter/internal/listener"
	"pdrouter/internal/reload"
	"pdrouter/metadata/client"
	"pdrouter/metadata/routes"
	"pdrouter/router"
	"pdrouter/router/config"
)

// edition is what was made of one file and what the next one replaces. It is never changed once it is in use.
type edition struct {
	l       *configfile.Loaded
	clients *credentials
	agents  *credentials
	admins  *credentials
	secure  map[*listener.Listener]*tls.Config  // of the listeners that have TLS
	opened  map[*listener.Listener]net.Listener // for those that move
}

// credentials are one section of them, at work.
type credentials struct {
	who      any    // what asks for them: *auth.Clients, *auth.Agents or *auth.Admins; nil pointers where there are none
	of       any    // the section
	secrets  string // a digest of what was read once
	files    *reload.Credentials
	warnings []string
	stop     func() // ends what start began; nil before
}

// start has the section's files and key sets read again and again until ctx or stop ends it.
func (s *credentials) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.files.Run(s.warnings...)(ctx) // always nil
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
}

// newEdition makes and opens all that l needs and old, which may be nil, does not have. On an error nothing is left open.
func (g *gateway) newEdition(l *configfile.Loaded, old *edition) (_ *edition, err error) {
	e := &edition{l: l, secure: map[*listener.Listener]*tls.Config{}, opened: map[*listener.Listener]net.Listener{}}
	defer func() {
		if err != nil {
			e.discard(old)
		}
	}()
	if old == nil {
		old = new(edition)
	}
	for _, s := range []struct {
		key  string
		to   **credentials
		was  *credentials
		of   configfile.TokenAuth
		all  any
		read func(*reload.Credentials) (any, error)
	}{
		{"auth.clients", &e.clients, old.clients, l.Auth.Clients.TokenAuth, l.Auth.Clients, func(f *reload.Credentials) (any, error) { return l.Auth.NewClients(f) }},
		{"auth.agents", &e.agents, old.agents, l.Auth.Agents, l.Auth.Agents, func(f *reload.Credentials) (any, error) { return l.Auth.NewAgents(f) }},
		{"auth.admins", &e.admins, old.admins, l.Auth.Admins, l.Auth.Admins, func(f *reload.Credentials) (any, error) { return l.Auth.NewAdmins(f) }},
	} {
		secrets := s.of.SecretsDigest()
		if s.was != nil && s.was.secrets == secrets && reflect.DeepEqual(s.was.of, s.all) {
			*s.to = s.was // with the tokens that were used once, and the key sets
			continue
		}
		next := &credentials{of: s.all, secrets: secrets, files: &reload.Credentials{Log: g.log}}
		if slices.Contains(l.Auth.Development(), s.key) {
			next.warnings = []string{configfile.DevelopmentWarning(s.key)}
		}
		if next.who, err = s.read(next.files); err != nil {
			return nil, l.At(field.Errorf(s.key, "cannot be used: %v", err))
		}
		*s.to = next
		if g.working != nil {
			next.start(g.working)
			next.files.Asked(g.working)
		}
	}
	for _, s := range l.Listen.Secured() {
		secure, err := s.Load()
		if err != nil {
			return nil, l.At(field.Errorf("listen."+s.Key+"_tls", "cannot be used: %v", err))
		}
		e.secure[g.listener(s.Key)] = secure
	}
	for d, address := range g.listeners(l) {
		ln, err := d.Open(address)
		if err != nil {
			return nil, l.At(err)
		}
		if ln != nil {
			e.opened[d] = ln
		}
	}
	return e, nil
}

// sections are all sections of the edition that there are.
func (e *edition) sections() []*credentials {
	return slices.DeleteFunc([]*credentials{e.clients, e.agents, e.admins}, func(s *credentials) bool { return s == nil })
}

// discard ends and closes what this edition has and the other one, which may be nil, has not.
func (e *edition) discard(other *edition) {
	var kept []*credentials
	if other != nil {
		kept = other.sections()
	}
	for _, s := range e.sections() {
		if s.stop != nil && !slices.Contains(kept, s) {
			s.stop()
		}
	}
	for _, ln := range e.opened {
		_ = ln.Close()
	}
}

// listener returns a listener that may have TLS.
func (g *gateway) listener(key string) *listener.Listener {
	return map[string]*listener.Listener{"clients": g.clients, "agents": g.agents, "admin": g.admins}[key]
}

// listeners returns the address of each listener.
func (g *gateway) listeners(l *configfile.Loaded) map[*listener.Listener]string {
	return map[*listener.Listener]string{g.clients: l.Listen.Clients, g.agents: l.Listen.Agents, g.operations: l.Listen.Operations, g.admins: l.Listen.Admin}
}

// partsOf completes what the router is built from with what is the edition's, for a configuration with all engines.
func (g *gateway) partsOf(e *edition, merged config.Config) router.Parts {
	parts := g.parts
	parts.Reclaim = g.reclaims.among(merged, g.log)
	parts.Planner = e.l.Routing
	if clients, _ := e.clients.who.(*auth.Clients); clients != nil {
		parts.Clients = clients
	}
	parts.Limiter = clientLimits{g.limiter, e.l.Tenants}
	if file := e.l.Auth.ControlTokenFile; file != "" {
		parts.Token = client.TokenFile(file)
	}
	return parts
}

// settle takes into use what nothing can be wrong with any more, and ends what the edition before had alone. old may be nil.
func (g *gateway) settle(e, old *edition) {
	if g.logs != nil {
		setLogs(g.logs, e.l.Log)
	}
	g.present.Store(e)
	g.meters.expect(e.l.Models)
	for d, secure := range e.secure {
		d.Secure.Store(secure)
	}
	for d, address := range g.listeners(e.l) {
		d.Move(address, e.opened[d])
	}
	if !e.l.Auth.Clients.On() && (old == nil || old.l.Auth.Clients.On()) {
		g.log.Warn("auth.clients is not set: everybody who reaches the clients' listener may use it")
	}
	if old == nil {
		return
	}
	if old.l.Auth.Admins.On() && !e.l.Auth.Admins.On() && old.l.Listen.Admin != "" {
		g.log.Warn("auth.admins is not set any more: connections to listen.admin that are open get 401 from now on")
	}
	for _, s := range old.sections() {
		if slices.Contains(e.sections(), s) {
			continue
		}
		g.failedBefore.Add(s.files.Stats().Failures)
		if s.stop != nil {
			s.stop()
		}
	}
}

// authorizeAgent asks whoever the present edition lets in.
func (g *gateway) authorizeAgent(r *http.Request, want routes.Access) (routes.Caller, error) {
	agents, _ := g.present.Load().agents.who.(*auth.Agents)
	if agents == nil { // the listener is closed to others than those who had connected before
		return routes.Caller{}, &auth.Error{Code: auth.InvalidToken, Err: errors.New("auth.agents has no keys")}
	}
	return agentsAuthorizer(agents).Authorize(r, want)
}

// admin returns who administrators are at present; nil: whoever reaches the operations' listener.
func (g *gateway) admin() *auth.Admins {
	admins, _ := g.present.Load().admins.who.(*auth.Admins)
	return admins
}

// keySets are the issuers' key sets that are in use.
func (g *gateway) keySets() []reload.IssuerSet {
	var all []reload.IssuerSet
	for _, s := range g.present.Load().sections() {
		all = append(all, s.files.Sets...)
	}
	return all
}

// credentialStats is how reading credentials again is doing, over all sections.
func (g *gateway) credentialStats() reload.Stats {
	all := reload.Stats{Failures: g.failedBefore.Load()}
	for _, s := range append(g.present.Load().sections(), g.records) {
		one := s.files.Stats()
		all.Failures += one.Failures
		all.Age = max(all.Age, one.Age)
	}
	return all
}
