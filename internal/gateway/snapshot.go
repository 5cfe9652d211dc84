package gateway

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

// snapshot is what was made of one file and what the next one replaces. It is never changed once it is in use.
type snapshot struct {
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

// newSnapshot makes and opens all that l needs and old, which may be nil, does not have. On an error nothing is left open.
func (g *Gateway) newSnapshot(l *configfile.Loaded, old *snapshot) (_ *snapshot, err error) {
	snap := &snapshot{l: l, secure: map[*listener.Listener]*tls.Config{}, opened: map[*listener.Listener]net.Listener{}}
	defer func() {
		if err != nil {
			snap.discard(old)
		}
	}()
	if old == nil {
		old = new(snapshot)
	}
	for _, s := range []struct {
		key  string
		to   **credentials
		was  *credentials
		of   configfile.TokenAuth
		all  any
		read func(*reload.Credentials) (any, error)
	}{
		{"auth.clients", &snap.clients, old.clients, l.Auth.Clients.TokenAuth, l.Auth.Clients, func(f *reload.Credentials) (any, error) { return l.Auth.NewClients(f) }},
		{"auth.agents", &snap.agents, old.agents, l.Auth.Agents, l.Auth.Agents, func(f *reload.Credentials) (any, error) { return l.Auth.NewAgents(f) }},
		{"auth.admins", &snap.admins, old.admins, l.Auth.Admins, l.Auth.Admins, func(f *reload.Credentials) (any, error) { return l.Auth.NewAdmins(f) }},
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
		snap.secure[g.listener(s.Key)] = secure
	}
	for d, address := range g.listeners(l) {
		ln, err := d.Open(address)
		if err != nil {
			return nil, l.At(err)
		}
		if ln != nil {
			snap.opened[d] = ln
		}
	}
	return snap, nil
}

// sections are all sections of the snapshot that there are.
func (snap *snapshot) sections() []*credentials {
	return slices.DeleteFunc([]*credentials{snap.clients, snap.agents, snap.admins}, func(s *credentials) bool { return s == nil })
}

// discard ends and closes what this snapshot has and the other one, which may be nil, has not.
func (snap *snapshot) discard(other *snapshot) {
	var kept []*credentials
	if other != nil {
		kept = other.sections()
	}
	for _, s := range snap.sections() {
		if s.stop != nil && !slices.Contains(kept, s) {
			s.stop()
		}
	}
	for _, ln := range snap.opened {
		_ = ln.Close()
	}
}

// listener returns a listener that may have TLS.
func (g *Gateway) listener(key string) *listener.Listener {
	return map[string]*listener.Listener{"clients": g.clients, "agents": g.agents, "admin": g.admins}[key]
}

// listeners returns the address of each listener.
func (g *Gateway) listeners(l *configfile.Loaded) map[*listener.Listener]string {
	return map[*listener.Listener]string{g.clients: l.Listen.Clients, g.agents: l.Listen.Agents, g.operations: l.Listen.Operations, g.admins: l.Listen.Admin}
}

// partsOf completes what the router is built from with what is the snapshot's, for a configuration with all engines.
func (g *Gateway) partsOf(snap *snapshot, merged config.Config) router.Parts {
	parts := g.parts
	parts.Reclaim = g.reclaims.among(merged, g.log)
	parts.Planner, parts.Shadow = snap.l.Routing, nil
	if snap.l.Shadow != nil {
		parts.Shadow = snap.l.Shadow
	}
	if clients, _ := snap.clients.who.(*auth.Clients); clients != nil {
		parts.Clients = clients
	}
	parts.Limiter = clientLimits{g.limiter, snap.l.Tenants}
	if file := snap.l.Auth.ControlTokenFile; file != "" {
		parts.Token = client.TokenFile(file)
	}
	return parts
}

// settle takes into use what nothing can be wrong with any more, and ends what the snapshot before had alone. old may be nil.
func (g *Gateway) settle(snap, old *snapshot) {
	if g.logs != nil {
		setLogs(g.logs, snap.l.Log)
	}
	g.current.Store(snap)
	g.metrics.expect(snap.l.Models)
	if snap.l.Migration.On() {
		g.metrics.expectMigrations()
	}
	for d, secure := range snap.secure {
		d.Secure.Store(secure)
	}
	for d, address := range g.listeners(snap.l) {
		d.Move(address, snap.opened[d])
	}
	if !snap.l.Auth.Clients.On() && (old == nil || old.l.Auth.Clients.On()) {
		g.log.Warn("auth.clients is not set: everybody who reaches the clients' listener may use it")
	}
	if old == nil {
		return
	}
	if old.l.Auth.Admins.On() && !snap.l.Auth.Admins.On() && old.l.Listen.Admin != "" {
		g.log.Warn("auth.admins is not set any more: connections to listen.admin that are open get 401 from now on")
	}
	for _, s := range old.sections() {
		if slices.Contains(snap.sections(), s) {
			continue
		}
		g.failedBefore.Add(s.files.Stats().Failures)
		if s.stop != nil {
			s.stop()
		}
	}
}

// authorizeAgent asks whoever the current snapshot lets in.
func (g *Gateway) authorizeAgent(r *http.Request, want routes.Access) (routes.Caller, error) {
	agents, _ := g.current.Load().agents.who.(*auth.Agents)
	if agents == nil { // the listener is closed to others than those who had connected before
		return routes.Caller{}, &auth.Error{Code: auth.InvalidToken, Err: errors.New("auth.agents has no keys")}
	}
	return AuthorizeAgents(agents).Authorize(r, want)
}

// admin returns who administrators are now; nil: whoever reaches the operations' listener.
func (g *Gateway) admin() *auth.Admins {
	admins, _ := g.current.Load().admins.who.(*auth.Admins)
	return admins
}

// keySets are the issuers' key sets that are in use.
func (g *Gateway) keySets() []reload.IssuerSet {
	var all []reload.IssuerSet
	for _, s := range g.current.Load().sections() {
		all = append(all, s.files.Sets...)
	}
	return all
}

// credentialStats is how reading credentials again is doing, over all sections.
func (g *Gateway) credentialStats() reload.Stats {
	all := reload.Stats{Failures: g.failedBefore.Load()}
	for _, s := range append(g.current.Load().sections(), g.records) {
		one := s.files.Stats()
		all.Failures += one.Failures
		all.Age = max(all.Age, one.Age)
	}
	return all
}
