package router

import (
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// readHead takes what is used of the request's head. Nothing else of it is looked at, and no field reaches an engine as it
// came.
func (q *admitted) readHead(h *fasthttp.RequestHeader) {
	q.id = requestID(h)
	parents := slices.Clone(h.PeekAll("Traceparent")) // the next call writes to the same place
	q.trace = parseTrace(parents, h.PeekAll("Tracestate"))
	retried := h.Peek("X-Stainless-Retry-Count")
	q.again = len(retried) > 0 && string(retried) != "0"
	switch q.route.does {
	case passForm:
		q.ctype = string(h.Peek(fiber.HeaderContentType))
	case askStored:
		_, q.query, _ = strings.Cut(string(h.RequestURI()), "?")
	}
}

// requestID is the client's own, if it can be repeated in a header and a log, else a new one. Engines never see it.
func requestID(h *fasthttp.RequestHeader) string {
	id := h.Peek(fiber.HeaderXRequestID)
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
