package router

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"pdrouter/policies"
	"pdrouter/router/edge"
	"pdrouter/router/fanout"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
)

// explain says which engines the request with this body would be given to now, and why. It sends nothing and changes nothing. The path after
// /explain is the route that the request would have. Of several choices that are asked for one by one, the first is explained.
func (r *Router) explain(w http.ResponseWriter, req *http.Request) {
	s := r.snapshot()
	path := strings.TrimPrefix(req.URL.Path, "/explain")
	shape, ok := edge.GeneratedShape(path)
	if !ok {
		http.Error(w, "no such route: want /explain followed by a route that generates text, such as /explain/v1/chat/completions", http.StatusNotFound)
		return
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, req.Body, int64(s.cfg.Limits.Body)))
	if large := new(http.MaxBytesError); errors.As(err, &large) {
		http.Error(w, "the body is larger than limits.body", http.StatusRequestEntityTooLarge)
		return
	} else if err != nil {
		http.Error(w, "the body ended early", http.StatusBadRequest)
		return
	}
	b, bad := openai.ParseBody(shape, raw, s.limits)
	if bad != nil {
		http.Error(w, bad.Error(), http.StatusBadRequest)
		return
	}
	m, adapter := s.fleet.Find(b.Model)
	if m == nil {
		http.Error(w, "no such model", http.StatusNotFound)
		return
	}
	if s.sealer != nil { // what tenants have cached is not for those who ask here
		b.Sealed = s.sealer.Seal("", b.Salt)
	}
	if fanout.Apart(s.fleet, m, b, s.cfg.Limits.MaxParallelChoices) {
		if each := b.ChoiceBodies(); len(each) > 0 {
			b = each[0]
		}
	}
	var session uint64
	if m.UsesSessions() || s.cfg.Migration.On() {
		session = edge.SessionOf(func(name string) []byte { return []byte(req.Header.Get(name)) }, b)
	}
	if m.Prices {
		if b.Objective, bad = edge.ObjectiveOf(func(name string) []byte { return []byte(req.Header.Get(name)) }); bad != nil {
			http.Error(w, bad.Error(), http.StatusBadRequest)
			return
		}
	}
	e, ok := s.fleet.Explain(m, adapter, b, session, func(cached func(*fleet.Engine) int) ([]policies.Move, bool) {
		return r.moves.Explain(s.fleet, m, adapter, b, session, cached)
	})
	if !ok {
		http.Error(w, "this gateway's planner does not explain", http.StatusNotImplemented)
		return
	}
	writeJSON(w, http.StatusOK, e)
}
