package routes

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// routes fills the route table.
func (h *Handler) routes() {
	const rank = "/metadata/v1/engines/{engine}/ranks/{dp}/{pp}/{tp}"
	h.handle("PUT "+rank, h.put)
	h.handle("GET "+rank, h.rank)
	h.handle("DELETE "+rank, h.delete)
	h.handle("GET /metadata/v1/engines", h.list)
	h.handle("GET /metadata/v1/engines/{engine}", h.engine)
	h.handle("GET /metadata/v1/pairs", h.listPairs)
	h.answer("GET /metadata/v1/watch", h.watch)
	h.handle("GET /get_kv_connector_metadata", h.connectorMetadata)
	h.handle("GET /get_kv_connector_metadata/{tp}", h.connectorMetadata)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if path.Clean(r.URL.Path) != r.URL.Path { // the mux would redirect
		(&refusal.Error{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such route"}).Write(w)
		return
	}
	if _, pattern := h.mux.Handler(r); pattern != "" {
		h.mux.ServeHTTP(w, r)
		return
	}
	// The mux would answer in plain text; what it says of other methods is kept.
	probe := httpProbe{header: http.Header{}}
	h.mux.ServeHTTP(&probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		(&refusal.Error{Status: probe.status, Reason: "method", Msg: "this route does not take the method " + r.Method}).Write(w)
		return
	}
	(&refusal.Error{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such route"}).Write(w)
}

// handle routes pattern to f and gives it a deadline for the store.
func (h *Handler) handle(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	h.answer(pattern, func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), h.cfg.Store)
		defer cancel()
		return f(w, r.WithContext(ctx))
	})
}

// answer routes pattern to f and turns its error into the answer.
func (h *Handler) answer(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			no := refuse(err)
			h.refused(no.Status, no.Reason)
			var newer *metadata.Superseded
			if errors.As(err, &newer) && newer.Known != 0 { // only who may write the engine's records comes so far
				w.Header().Set(metadata.GenerationHeader, strconv.FormatUint(newer.Known, 10))
			}
			no.Answer(w, r, "metadata", h.log)
		}
	})
}

// refuse makes any error a refusal.
func refuse(err error) *refusal.Error {
	switch r := refusal.Of(err); {
	case r != nil:
		return r
	case errors.Is(err, metadata.ErrNotFound):
		return &refusal.Error{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such record", Err: err}
	case errors.Is(err, metadata.ErrStale):
		return &refusal.Error{Status: http.StatusConflict, Reason: "stale", Msg: "a newer record is known", Err: err}
	}
	return &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "store_unavailable", Msg: "the store cannot be reached", Err: err}
}

// httpProbe takes in an answer that is not sent.
type httpProbe struct {
	header http.Header
	status int
}

func (p *httpProbe) Header() http.Header         { return p.header }
func (p *httpProbe) WriteHeader(status int)      { p.status = status }
func (p *httpProbe) Write(b []byte) (int, error) { return len(b), nil }
