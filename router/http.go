package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"pdrouter/auth"
)

// The paths of the route table. Engines are asked on the table's path, never on the client's bytes.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
	pathModels      = "/v1/models"
	pathRealtime    = "/v1/realtime"
)

// edge is the clients' HTTP server. This file alone knows fiber and fasthttp's server side: their strings are
// rewritten by the next request on the connection, so what is kept is copied here.
func (r *Router) edge() *fiber.App {
	app := fiber.New(fiber.Config{
		CaseSensitive:         true,
		StrictRouting:         true,
		DisableStartupMessage: true,
		BodyLimit:             r.cfg.Limits.Body,
		ReadBufferSize:        headBytes,
		ReadTimeout:           r.cfg.Timeouts.Read,
		IdleTimeout:           r.cfg.Timeouts.Idle,
		Concurrency:           r.cfg.Limits.Concurrent,
		ErrorHandler:          r.refuse,
	})
	app.Server().CloseOnShutdown = true
	app.Server().NoDefaultServerHeader = true
	app.Server().ExpectHandler = r.expect
	app.Use(r.handle)
	return app
}

const (
	headBytes     = 16 << 10 // the most bytes of a request's head
	maxLoggedPath = 256      // the most bytes of a path in the log
)

// expect answers Expect: 100-continue before the body is sent.
func (r *Router) expect(c *fasthttp.RequestCtx) int {
	if c.Request.Header.ContentLength() <= r.cfg.Limits.Body {
		return fasthttp.StatusContinue
	}
	e := errTooLarge(r.cfg.Limits.Body)
	c.Response.Header.SetContentType("application/json")
	c.Response.SetBody(e.appendJSON(nil))
	return e.Status
}

// refuse answers requests that the server could not read.
func (r *Router) refuse(c *fiber.Ctx, err error) error {
	var fe *fiber.Error
	if !errors.As(err, &fe) {
		return r.fail(c, errInternal(err))
	}
	e := errFraming("The request could not be read.")
	switch fe.Code {
	case http.StatusRequestEntityTooLarge:
		e = errTooLarge(r.cfg.Limits.Body)
	case http.StatusRequestHeaderFieldsTooLarge:
		e = errHeadTooLarge("The request's head is larger than %d bytes.", headBytes)
	case http.StatusRequestTimeout:
		e.Status, e.Reason, e.Msg = http.StatusRequestTimeout, reasonTimeout, "The request did not arrive in time."
	}
	e.Err = err
	return r.fail(c, e)
}

// handle serves one request.
func (r *Router) handle(c *fiber.Ctx) (err error) {
	var lease Lease // until x has it
	var x *exchange
	defer func() {
		if v := recover(); v != nil {
			if x != nil { // whatever it holds comes free
				x.panicked(v)
			} else if lease != nil {
				lease.Done(0)
			}
			r.log.Error("panic at the edge", "panic", v, "stack", stack())
			c.Response().Reset()
			err = r.fail(c, errInternal(nil))
		}
	}()
	arrived := time.Now()
	h := &c.Request().Header
	proto := "HTTP/1.1"
	if !h.IsHTTP11() {
		proto = "HTTP/1.0"
	}
	if e := checkFraming(requestHead{Proto: proto, URI: h.RequestURI(), Raw: h.RawHeaders()}, headLimits{Bytes: headBytes}); e != nil {
		return r.fail(c, e)
	}
	shape, e := r.route(c)
	if e != nil {
		return r.fail(c, e)
	}
	if shape == shapeModels {
		return r.listModels(c)
	}
	who, e := r.authenticate(c)
	if e != nil {
		return r.fail(c, e)
	}
	if e := contentType(h); e != nil {
		return r.fail(c, e)
	}
	b, e := parseBody(shape, c.Request().Body(), r.limits)
	if e != nil {
		return r.fail(c, e)
	}
	if b.model == "" {
		return r.fail(c, errBadRequest(reasonNoModel, "model", "The field model is missing."))
	}
	m := r.fleet.models[b.model]
	if m == nil {
		return r.fail(c, errNoModel(b.model))
	}
	if !who.Permits(m.name) {
		return r.fail(c, errForbidden(fmt.Errorf("may not name the model %s", m.name)).of(who, m.name))
	}
	path := pathCompletions
	if shape == shapeChat {
		path = pathChat
	}
	if r.parts.Limits != nil {
		var allowed Allowance
		lease, allowed = r.parts.Limits.Admit(who, b.expected())
		allowed.tell(c.Response().Header.Set)
		if lease == nil && allowed.Over != "" {
			return r.fail(c, errOverLimit(allowed).of(who, m.name))
		}
	}
	x = r.newExchange(m, b, path, arrived)
	x.lease = lease
	x.sum.RequestID = requestID(h)
	x.sum.Subject = who.Subject
	x.traceparent = string(h.Peek("Traceparent"))
	conn := c.Context().Conn()
	x.watchClient(conn)
	x.run()
	r.send(c, x)
	return nil
}

// shapeModels is the route table's entry for GET /v1/models.
const shapeModels shape = 255

// route finds the request in the route table: exact bytes, nothing is normalised.
func (r *Router) route(c *fiber.Ctx) (shape, *httpError) {
	uri := c.Request().Header.RequestURI()
	path := string(uri)
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	s, method := shapeCompletions, fiber.MethodPost
	switch path {
	case pathCompletions:
	case pathChat:
		s = shapeChat
	case pathModels:
		s, method = shapeModels, fiber.MethodGet
	case pathRealtime:
		return 0, errUnsupported("The realtime route")
	default:
		return 0, errNoRoute()
	}
	if c.Method() != method {
		c.Set(fiber.HeaderAllow, method)
		return 0, errMethod()
	}
	return s, nil
}

// authenticate says who calls.
func (r *Router) authenticate(c *fiber.Ctx) (principal, *httpError) {
	if r.parts.Clients == nil {
		return principal{}, nil
	}
	headers := c.Request().Header.PeekAll(fiber.HeaderAuthorization)
	if len(headers) > 1 { // whoever stands in between may have believed another one
		return principal{}, errRefused(&auth.Error{Code: auth.InvalidToken, Err: fmt.Errorf("%d authorization headers", len(headers))})
	}
	authorization := ""
	if len(headers) == 1 {
		authorization = string(headers[0])
	}
	p, err := r.parts.Clients.Authenticate(authorization)
	if err == nil {
		return p, nil
	}
	return principal{}, errRefused(err)
}

// contentType wants JSON, as the bytes of a body are not looked at otherwise.
func contentType(h *fasthttp.RequestHeader) *httpError {
	if len(h.Peek(fiber.HeaderContentEncoding)) > 0 {
		return errBadRequest(reasonContentType, "", "The request body must not be encoded.")
	}
	t := string(h.ContentType())
	if i := strings.IndexByte(t, ';'); i >= 0 {
		t = t[:i]
	}
	if !strings.EqualFold(strings.TrimSpace(t), "application/json") {
		return errBadRequest(reasonContentType, "", "The content type must be application/json.")
	}
	return nil
}

// listModels answers GET /v1/models with the models that the caller may name.
func (r *Router) listModels(c *fiber.Ctx) error {
	who, e := r.authenticate(c)
	if e != nil {
		return r.fail(c, e)
	}
	r.identify(c)
	c.Response().Header.SetContentType("application/json")
	c.Response().SetBody(r.modelList(who))
	r.bound(c)
	return nil
}

// send hands the outcome of a request to the server.
func (r *Router) send(c *fiber.Ctx, x *exchange) {
	h := &c.Response().Header
	if r.draining.Load() {
		c.Response().SetConnectionClose()
	}
	conn := c.Context().Conn()
	s := x.reply.stream
	if x.d.state == stDone {
		s = nil // it ended before it began
	}
	if x.sum.Prefill != "" {
		h.Set("X-Pdrouter-Prefill", x.sum.Prefill)
	}
	if x.sum.Decode != "" {
		h.Set("X-Pdrouter-Decode", x.sum.Decode)
	}
	switch {
	case s != nil:
		h.Set(fiber.HeaderXRequestID, x.sum.RequestID)
		h.Set("X-Pdrouter-Reason", x.sum.Reason)
		h.SetContentType("text/event-stream; charset=utf-8")
		h.Set(fiber.HeaderCacheControl, "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.conn = conn
		s.sign()
		c.Response().SetBodyStream(s, -1)
		return
	case x.reply.err != nil:
		c.Response().Header.Set(fiber.HeaderXRequestID, x.sum.RequestID)
		r.answerError(c, x.reply.err)
	case x.reply.status == 0: // the client has left
		c.Response().SetStatusCode(499)
		c.Response().SetConnectionClose()
	default:
		h.Set(fiber.HeaderXRequestID, x.sum.RequestID)
		h.Set("X-Pdrouter-Reason", x.sum.Reason)
		h.SetContentType(x.reply.ctype)
		c.Response().SetStatusCode(x.reply.status)
		if x.reply.status >= 400 && x.reply.status < 500 {
			h.Set("X-Should-Retry", "false")
		}
		c.Response().SetBodyRaw(x.reply.body)
	}
	r.bound(c)
}

// fail answers a request that was never admitted, and notes it: such a request has no Summary.
func (r *Router) fail(c *fiber.Ctx, e *httpError) error {
	r.answerError(c, e)
	r.bound(c)
	if r.parts.Refused != nil {
		r.parts.Refused(e.Status, e.Reason)
	}
	level := slog.LevelInfo
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden || e.Status >= 500 {
		level = slog.LevelWarn
	}
	path, _, _ := strings.Cut(string(c.Request().Header.RequestURI()), "?")
	r.log.Log(context.Background(), level, "refused", "request_id", string(c.Response().Header.Peek(fiber.HeaderXRequestID)),
		"method", c.Method(), "path", clip(path, maxLoggedPath), "remote", c.Context().RemoteAddr().String(), "subject", e.Subject,
		"tenant", e.Tenant, "model", e.Model, "status", e.Status, "reason", e.Reason, "err", e.Err)
	return nil
}

// bound limits the write of the answer. The deadline of an earlier request on the connection may be over by now.
func (r *Router) bound(c *fiber.Ctx) {
	_ = c.Context().Conn().SetWriteDeadline(time.Now().Add(r.cfg.Timeouts.Write))
}

// answerError makes an error of the router's own the answer.
func (r *Router) answerError(c *fiber.Ctx, e *httpError) {
	h := &c.Response().Header
	c.Response().SetStatusCode(e.Status)
	r.identify(c)
	h.SetContentType("application/json")
	h.Set("X-Pdrouter-Reason", e.Reason)
	if e.NoRetry {
		h.Set("X-Should-Retry", "false")
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After-Ms", strconv.FormatInt(e.RetryAfter.Milliseconds(), 10))
		h.Set(fiber.HeaderRetryAfter, strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	if e.Challenge != "" {
		h.Set(fiber.HeaderWWWAuthenticate, e.Challenge)
	}
	if e.Close || r.draining.Load() {
		c.Response().SetConnectionClose()
	}
	c.Response().SetBodyRaw(e.appendJSON(nil))
}

// identify gives the answer the request's id, if it has none yet.
func (r *Router) identify(c *fiber.Ctx) {
	if len(c.Response().Header.Peek(fiber.HeaderXRequestID)) == 0 {
		c.Response().Header.Set(fiber.HeaderXRequestID, requestID(&c.Request().Header))
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
