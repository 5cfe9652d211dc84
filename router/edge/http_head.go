package edge

import (
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"pdrouter/internal/httpsyntax"
	"pdrouter/router/leg"
)

// headerRequestID is fiber.HeaderXRequestID as it is sent.
const headerRequestID = "X-Request-Id"

// readHead takes what is used of the request's head. Nothing else of it is looked at, and no field reaches an engine as it
// came.
func (q *request) readHead(h *fasthttp.RequestHeader) {
	q.ID = requestID(h)
	parents := slices.Clone(h.PeekAll("Traceparent")) // the next call writes to the same place
	if t := leg.ParseTrace(parents, h.PeekAll("Tracestate")); t != "" {
		q.Forwarded = &leg.Forwarded{Trace: t}
	}
	retried := h.Peek("X-Stainless-Retry-Count")
	q.Retried = len(retried) > 0 && string(retried) != "0"
	switch q.route.does {
	case passForm:
		q.ctype = string(h.Peek(fiber.HeaderContentType))
	case askStored:
		_, q.query, _ = strings.Cut(string(h.RequestURI()), "?")
	}
}

// forwardAuthorization has the engines of the request's model be given the client's credentials. Several are none: whoever
// stands in between may have believed another one.
func (q *request) forwardAuthorization(h *fasthttp.RequestHeader) {
	if q.Forwarded == nil {
		q.Forwarded = new(leg.Forwarded)
	}
	q.Forwarded.Judged = true
	if a, err := credentialsOf(q.route, h); err == nil && httpsyntax.IsFieldValue([]byte(a)) {
		q.Forwarded.Authorization = a
	}
}

// credentialsOf returns the client's credentials as they stand in Authorization; "" if there are none.
func credentialsOf(rt *route, h *fasthttp.RequestHeader) (string, error) {
	authorization, err := oneOf(h.PeekAll(fiber.HeaderAuthorization))
	if err != nil || !rt.keyed() {
		return authorization, err
	}
	key, err := oneOf(h.PeekAll("X-Api-Key"))
	if err != nil {
		return "", err
	}
	return withKey(authorization, key)
}

// requestID is the client's own, if it can be repeated in a header and a log, else a new one. Engines never see it.
func requestID(h *fasthttp.RequestHeader) string {
	id := h.Peek(headerRequestID)
	if len(id) == 0 || len(id) > 128 {
		return newRequestID()
	}
	for _, b := range id {
		if b <= ' ' || b >= 0x7f {
			return newRequestID()
		}
	}
	return string(id)
}
