package main

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
	"pdrouter/internal/refusal"
	"pdrouter/internal/yamlfile"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

const (
	// mostAdminBytes bounds the body of an administrator's request.
	mostAdminBytes = 64 << 10
	// longestDrain bounds what ?drain= may say.
	longestDrain = 7 * 24 * time.Hour
)

// admin serves the routes that add, drain and remove engines. Everything there needs a token for administrators: looking the
// scope read, the rest the scope engines.
type admin struct {
	auth interface {
		Authorize(r *http.Request, scope string) (auth.Principal, error)
	}
	sources  *sources
	stats    func() router.Stats
	requests *prometheus.CounterVec // by action and status
	log      *slog.Logger
	turn     chan struct{} // has room for one: changes come one after the other
	mux      *http.ServeMux
}

// adminHandler does one thing for an administrator. It returns the status and what is answered.
type adminHandler func(r *http.Request, who auth.Principal) (int, any, error)

func newAdmin(a *admin) *admin {
	a.turn, a.mux = make(chan struct{}, 1), http.NewServeMux()
	a.handle("GET /admin/v1/engines", "list", a.list)
	a.handle("GET /admin/v1/engines/{name}", "show", a.show)
	a.handle("POST /admin/v1/models/{path...}", "add", a.add)
	a.handle("POST /admin/v1/engines/{name}/drain", "drain", a.drainer(true))
	a.handle("POST /admin/v1/engines/{name}/undrain", "undrain", a.drainer(false))
	a.handle("DELETE /admin/v1/engines/{name}", "remove", a.remove)
	a.handle("/", "unknown", func(*http.Request, auth.Principal) (int, any, error) {
		return 0, nil, adminErrorf(http.StatusNotFound, "no_route", "there is no such route")
	})
	return a
}

// ServeHTTP implements http.Handler.
func (a *admin) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// handle serves a route: who it is, what is done, one line in the log.
func (a *admin) handle(pattern, action string, do adminHandler) {
	for _, status := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden} {
		a.counter(action, status) // from the start at 0
	}
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		scope := auth.EnginesScope
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			scope = auth.ReadScope
		}
		who, err := a.auth.Authorize(r, scope)
		if err != nil {
			status := &counting{ResponseWriter: w}
			refusal.Answer(status, r, "admin", err, a.log)
			a.counter(action, status.status).Inc()
			return
		}
		if scope == auth.EnginesScope {
			b, err := io.ReadAll(io.LimitReader(r.Body, mostAdminBytes+1)) // before its turn: who sends slowly holds up nobody
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
			var refused *adminError
			if !errors.As(err, &refused) {
				refused = &adminError{http.StatusInternalServerError, "internal", "something went wrong here"}
				a.log.Error("admin", "err", err)
			}
			status, reason = refused.Status, refused.Reason
			answerAdmin(w, refused)
		} else {
			writeJSON(w, status, body)
		}
		a.counter(action, status).Inc()
		a.log.Info("admin", "action", action, "subject", who.Subject, "path", r.URL.Path, "query", r.URL.RawQuery, "remote", r.RemoteAddr,
			"status", status, "reason", reason)
	})
}

// counter counts the answers with a status to requests of one kind.
func (a *admin) counter(action string, status int) prometheus.Counter {
	return a.requests.WithLabelValues(action, strconv.Itoa(status))
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

// answerAdmin answers in OpenAI's error shape.
func answerAdmin(w http.ResponseWriter, e *adminError) {
	kind := "invalid_request_error"
	if e.Status >= 500 {
		kind = "server_error"
	}
	w.Header().Set("X-Pdrouter-Reason", e.Reason)
	writeJSON(w, e.Status, map[string]any{"error": map[string]any{"message": e.Msg, "type": kind, "param": nil, "code": e.Status}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// engines describes every engine.
func (a *admin) engines() []adminEngine {
	known := map[string]engineStats{}
	for _, e := range a.stats().Engines {
		if e.Of != "" { // what is known of an engine is what is known of its ranks
			e.Name = e.Of
		}
		one := known[e.Name]
		one.up, one.checked, one.inFlight = one.up || e.Up, one.checked || e.State != fleet.Unchecked, one.inFlight+e.InFlight
		known[e.Name] = one
	}
	all := []adminEngine{}
	for _, p := range a.sources.engines() {
		all = append(all, describe(p, known[p.Name]))
	}
	return all
}

// adminList is every engine as administrators see it.
type adminList struct {
	Engines []adminEngine `json:"engines"`
	Lapsed  []adminLapsed `json:"lapsed,omitempty"` // by name
}

func (a *admin) list(*http.Request, auth.Principal) (int, any, error) {
	return http.StatusOK, adminList{a.engines(), lapsedOf(a.sources.overrides.Expired())}, nil
}

func (a *admin) show(r *http.Request, _ auth.Principal) (int, any, error) {
	return a.shown(http.StatusOK, r.PathValue("name"))
}

// shown answers with one engine, or only with its name if it is gone.
func (a *admin) shown(status int, name string) (int, any, error) {
	for _, e := range a.engines() {
		if e.Name == name {
			return status, e, nil
		}
	}
	return 0, nil, adminErrorf(http.StatusNotFound, "no_engine", "there is no engine %.100q", name)
}

func (a *admin) add(r *http.Request, who auth.Principal) (int, any, error) {
	model, list, ok := cutLast(r.PathValue("path"))
	if !ok || (listOf{list: list}).role() == "" {
		return 0, nil, adminErrorf(http.StatusNotFound, "no_route", "want /admin/v1/models/MODEL/ and prefill, decode or engines")
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, mostAdminBytes+1))
	if err != nil {
		return 0, nil, adminErrorf(http.StatusBadRequest, "bad_body", "the body could not be read")
	}
	if len(b) > mostAdminBytes {
		return 0, nil, adminErrorf(http.StatusRequestEntityTooLarge, "bad_body", "the body has more than %d bytes", mostAdminBytes)
	}
	if !json.Valid(b) {
		return 0, nil, adminErrorf(http.StatusBadRequest, "bad_body", "the body is not JSON")
	}
	var e config.Engine
	if err := yamlfile.Decode("body", b, &e).Err(); err != nil { // as strict as the configuration file is
		return 0, nil, adminErrorf(http.StatusBadRequest, "bad_engine", "%v", err)
	}
	another, err := a.sources.add(r.Context(), listOf{model, list}, e, who.Subject)
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

func (a *admin) drainer(on bool) adminHandler {
	return func(r *http.Request, who auth.Principal) (int, any, error) {
		name := r.PathValue("name")
		if err := a.sources.drain(r.Context(), name, on, who.Subject); err != nil {
			return 0, nil, err
		}
		return a.shown(http.StatusOK, name)
	}
}

func (a *admin) remove(r *http.Request, who auth.Principal) (int, any, error) {
	name, query := r.PathValue("name"), r.URL.Query()
	var wait *time.Duration
	switch force := query.Get("force"); {
	case force != "" && force != "true" && force != "false":
		return 0, nil, adminErrorf(http.StatusBadRequest, "bad_query", "force is %.20q; want true or false", force)
	case force == "true":
		wait = new(time.Duration)
	case query.Has("drain"):
		d, err := time.ParseDuration(query.Get("drain"))
		if err != nil || d < 0 || d > longestDrain {
			return 0, nil, adminErrorf(http.StatusBadRequest, "bad_query", "drain is %.20q; want a time such as 30s, at most %s", query.Get("drain"), longestDrain)
		}
		wait = &d
	}
	if err := a.sources.remove(r.Context(), name, wait, who.Subject); err != nil {
		return 0, nil, err
	}
	status, body, err := a.shown(http.StatusAccepted, name)
	if err != nil { // it is gone already, and nobody has it any more
		return http.StatusOK, map[string]any{"name": name, "state": "removed"}, nil
	}
	if e, ok := body.(adminEngine); ok && e.State == "removed" {
		status = http.StatusOK
	}
	return status, body, nil
}
