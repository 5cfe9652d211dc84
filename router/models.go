package router

import (
	"crypto/rand"
	"encoding/hex"

	"pdrouter/auth"
)

type principal = auth.Principal

// modelList is the answer to GET /v1/models: the configured models that the caller may name, in the configuration's
// order.
func (r *Router) modelList(who principal) []byte {
	dst := []byte(`{"object":"list","data":[`)
	for i, m := range r.cfg.Models {
		if !who.Permits(m.Name) {
			continue
		}
		if i > 0 && dst[len(dst)-1] == '}' {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = appendString(dst, m.Name)
		dst = append(dst, `,"object":"model","created":0,"owned_by":"pdrouter"}`...)
	}
	return append(dst, "]}"...)
}

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "req-" + hex.EncodeToString(b[:])
}
