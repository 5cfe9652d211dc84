// Package adminapi is the API of administrators: HTTP routes that list, add, drain and remove the engines of a running gateway, and the
// client of these routes. It decides who may do it and whether a change fits. What is known of engines is internal/fleetview's, and what
// administrators want internal/overrides'. internal/gateway serves a Handler; the command pdrouter admin is a Client.
package adminapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/auth"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/internal/refusal"
	"pdrouter/internal/yamlfile"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

const (
	// maxBody bounds the body of an administrator's request, in bytes.
	maxBody = 64 << 10
	// maxDrain bounds what ?drain= may say.
	maxDrain = 7 * 24 * time.Hour
)

// Authorizer decides who may do what.
type Authorizer interface {
	// Authorize returns who sent a request if they have the scope.
	Authorize(r *http.Request, scope string) (auth.Principal, error)
}

// Config is what a Handler needs.
type Config struct {
	Auth      Authorizer
	View      *fleetview.View
	Overrides *overrides.Store
	Stats     func() router.Stats
	Requests  *prometheus.CounterVec // by action and status
	Log       *slog.Logger
}

// Handler serves the routes. Everything there needs a token for administrators: looking the scope read, the rest the scope engines.
type Handler struct {
	Config
	turn chan struct{} // has room for one: changes come one after the other
	mux  *http.ServeMux
}

// handler does one thing for an administrator. It returns the status and what is answered.
type handler func(r *http.Request, who auth.Principal) (int, any, error)

// New returns the routes.
func New(c Config) *Handler {
	a := &Handler{Config: c, turn: make(chan struct{}, 1), mux: http.NewServeMux()}
	a.handle("GET /admin/v1/engines", "list", a.list)
	a.handle("GET /admin/v1/engines/{name}", "show", a.show)
	a.handle("POST /admin/v1/models/{path...}", "add", a.add)
	a.handle("POST /admin/v1/engines/{name}/drain", "drain", a.drainer(true))
	a.handle("POST /admin/v1/engines/{name}/undrain", "undrain", a.drainer(false))
	a.handle("DELETE /admin/v1/engines/{name}", "remove", a.remove)
	a.handle("/", "unknown", func(*http.Request, auth.Principal) (int, any, error) {
		return 0, nil, errorf(http.StatusNotFound, "no_route", "there is no such route")
	})
	return a
}

// ServeHTTP implements http.Handler.
func (a *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// handle serves a route: who it is, what is done, one line in the log of what changes something.
func (a *Handler) handle(pattern, action string, do handler) {
	for _, status := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden} {
		a.counter(action, status) // from the start at 0
	}
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		scope := auth.EnginesScope
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			scope = auth.ReadScope
		}
		who, err := a.Auth.Authorize(r, scope)
		if err != nil {
			status := &counting{ResponseWriter: w}
			refusal.Answer(status, r, "admin", err, a.Log)
			a.counter(action, status.status).Inc()
			return
		}
		if scope == auth.EnginesScope {
			b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1)) // before its turn: who sends slowly holds up nobody
			r.Body = io.NopCloser(&readBody{*bytes.NewReader(b), err})
			select {
			case a.turn <- struct{}{}:
				defer func() { <-a.turn }()
			case <-r.Context().Done():
				return
			}
		}
		status, body, err := do(r, who)
		reason := ""
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) {
				refused = &Error{http.StatusInternalServerError, "internal", "something went wrong here"}
				a.Log.Error("admin", "err", err)
			}
			status, reason = refused.Status, refused.Reason
			refused.Write(w)
		} else {
			writeJSON(w, status, body)
		}
		a.counter(action, status).Inc()
		if scope == auth.EnginesScope { // people and tools look every few seconds
			Audit(a.Log, r, action, who, status, reason)
		}
	})
}

// Audit logs one line about what an administrator did: who, what, from where, with which result. It is written whatever the log's level is.
// The token is named by its id, and never logged.
func Audit(log *slog.Logger, r *http.Request, action string, who auth.Principal, status int, reason string) {
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "admin action", 0)
	line.AddAttrs(slog.String("action", action), slog.String("subject", who.Subject), slog.String("token_id", who.TokenID),
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("query", r.URL.RawQuery), slog.String("remote", r.RemoteAddr),
		slog.Int("status", status), slog.String("reason", reason))
	_ = log.Handler().Handle(r.Context(), line) // as Logger does, without asking for the level
}

// counter counts the answers with a status to requests of one kind.
func (a *Handler) counter(action string, status int) prometheus.Counter {
	return a.Requests.WithLabelValues(action, strconv.Itoa(status))
}

// readBody is a body that was read already. failed is how that ended, nil at its end.
type readBody struct {
	rest   bytes.Reader
	failed error
}

// Read implements io.Reader.
func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.rest.Read(p)
	if errors.Is(err, io.EOF) && b.failed != nil {
		err = b.failed
	}
	return n, err
}

// counting notes the status that is answered.
type counting struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (c *counting) WriteHeader(status int) { c.status = status; c.ResponseWriter.WriteHeader(status) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// engines describes every engine.
func (a *Handler) engines() []Engine {
	known, stats, ranks := map[string]engineStats{}, a.Stats(), map[string]string{}
	for _, e := range stats.Engines {
		rank := e.Name
		if e.Of != "" { // what is known of an engine is what is known of its ranks
			e.Name = e.Of
		}
		ranks[rank] = e.Name
		one := known[e.Name]
		one.recomputing = one.recomputing || e.HandOffs != nil && e.HandOffs.Recomputing
		one.up, one.checked, one.inFlight = one.up || e.Up, one.checked || e.State != fleet.Unchecked, one.inFlight+e.InFlight
		one.moves += e.MovesLeft
		one.busy = one.busy || e.InFlight > 0 || e.Uncollected > 0
		known[e.Name] = one
	}
	for _, p := range stats.SlowPairs {
		one := known[ranks[p.Decode]]
		one.slowFrom = append(one.slowFrom, p.Prefill)
		known[ranks[p.Decode]] = one
	}
	all := []Engine{}
	for _, p := range a.View.Engines() {
		all = append(all, describe(p, known[p.Name]))
	}
	return all
}

// Listing is every engine as administrators see it.
type Listing struct {
	Engines []Engine  `json:"engines"`
	Expired []Expired `json:"expired,omitempty"` // by name
}

func (a *Handler) list(*http.Request, auth.Principal) (int, any, error) {
	return http.StatusOK, Listing{a.engines(), expiredOf(a.Overrides.Expired())}, nil
}

func (a *Handler) show(r *http.Request, _ auth.Principal) (int, any, error) {
	return a.shown(http.StatusOK, r.PathValue("name"))
}

// shown answers with one engine, or only with its name if it is gone.
func (a *Handler) shown(status int, name string) (int, any, error) {
	for _, e := range a.engines() {
		if e.Name == name {
			return status, e, nil
		}
	}
	return 0, nil, errorf(http.StatusNotFound, "no_engine", "there is no engine %.100q", name)
}

func (a *Handler) add(r *http.Request, who auth.Principal) (int, any, error) {
	model, list, ok := cutLast(r.PathValue("path"))
	if !ok || (fleetview.List{Key: list}).Prefix() == "" {
		return 0, nil, errorf(http.StatusNotFound, "no_route", "want /admin/v1/models/MODEL/ and prefill, decode or engines")
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return 0, nil, errorf(http.StatusBadRequest, "bad_body", "the body could not be read")
	}
	if len(b) > maxBody {
		return 0, nil, errorf(http.StatusRequestEntityTooLarge, "bad_body", "the body has more than %d bytes", maxBody)
	}
	if !json.Valid(b) {
		return 0, nil, errorf(http.StatusBadRequest, "bad_body", "the body is not JSON")
	}
	var e config.Engine
	if err := yamlfile.Decode("body", b, &e).Err(); err != nil { // as strict as the configuration file is
		return 0, nil, errorf(http.StatusBadRequest, "bad_engine", "%v", err)
	}
	another, err := a.addEngine(r.Context(), fleetview.List{Model: model, Key: list}, e, who.Subject)
	if err != nil {
		return 0, nil, err
	}
	status := http.StatusOK
	if another {
		status = http.StatusCreated
	}
	return a.shown(status, e.Name)
}

// cutLast cuts a path before its last slash: names of models may have some.
func cutLast(path string) (before, last string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "", "", false
	}
	return path[:i], path[i+1:], true
}

func (a *Handler) drainer(on bool) handler {
	return func(r *http.Request, who auth.Principal) (int, any, error) {
		name := r.PathValue("name")
		if err := a.drain(r.Context(), name, on, who.Subject); err != nil {
			return 0, nil, err
		}
		return a.shown(http.StatusOK, name)
	}
}

func (a *Handler) remove(r *http.Request, who auth.Principal) (int, any, error) {
	name, query := r.PathValue("name"), r.URL.Query()
	var wait *time.Duration
	switch force := query.Get("force"); {
	case force != "" && force != "true" && force != "false":
		return 0, nil, errorf(http.StatusBadRequest, "bad_query", "force is %.20q; want true or false", force)
	case force == "true":
		wait = new(time.Duration)
	case query.Has("drain"):
		d, err := time.ParseDuration(query.Get("drain"))
		if err != nil || d < 0 || d > maxDrain {
			return 0, nil, errorf(http.StatusBadRequest, "bad_query", "drain is %.20q; want a time such as 30s, at most %s", query.Get("drain"), maxDrain)
		}
		wait = &d
	}
	if err := a.removeEngine(r.Context(), name, wait, who.Subject); err != nil {
		return 0, nil, err
	}
	status, body, err := a.shown(http.StatusAccepted, name)
	if err != nil { // it is gone already, and nobody has it any more
		return http.StatusOK, map[string]any{"name": name, "state": "removed"}, nil
	}
	if e, ok := body.(Engine); ok && e.State == "removed" {
		status = http.StatusOK
	}
	return status, body, nil
}
