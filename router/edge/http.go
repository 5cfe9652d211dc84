package edge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"pdrouter/auth"
	"pdrouter/internal/httpsyntax"
	"pdrouter/router/exchange"
	"pdrouter/router/fanout"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/trace"
)

const maxLoggedPath = 256 // bytes of a path in the log

// handle serves one request. This file and edge.go alone know fiber and fasthttp's server side: their strings are rewritten by
// the next request on the connection, so what is kept is copied here.
func (srv *Edge) handle(c *fiber.Ctx) (err error) {
	s := srv.Current()
	q := &request{srv: srv, snapshot: s, Request: exchange.Request{ServedBy: s.Exchange, Arrived: time.Now()}}
	defer q.endTrace(c)
	defer func() {
		if v := recover(); v != nil {
			q.panicked(v)
			srv.Log.Error("panic at the edge", "panic", v, "stack", string(debug.Stack()))
			c.Response().Reset()
			err = srv.reject(c, openai.ErrInternal(nil))
		}
	}()
	h, conn := &c.Request().Header, c.Context().Conn().(*clientConn)
	framing, e := checkFraming(requestHead{Proto: string(h.Protocol()), URI: h.RequestURI(), Raw: h.RawHeaders()})
	if e == nil && (conn.head.bareLF || !conn.unfinished) { // not unfinished: the server found an end of the head, and headEnd none
		e = openai.ErrFraming("A header line does not end in CRLF.")
	}
	if e != nil {
		return srv.reject(c, e)
	}
	conn.expect(framing)
	rt, name, e := findRoute(pathOf(h.RequestURI()), c.Method())
	if e != nil {
		if rt != nil && e.Status == http.StatusMethodNotAllowed {
			c.Set(fiber.HeaderAllow, rt.method)
		}
		return srv.reject(c, e)
	}
	if rt.does.isProbe() {
		c.Response().SetStatusCode(srv.answerProbe(rt.does))
		srv.limitWrite(c)
		return nil
	}
	q.route, q.name = rt, name
	if q.who, e = srv.authenticate(q.snapshot, rt, c); e != nil {
		return srv.reject(c, e)
	}
	q.Path, q.Pattern, q.Subject, q.Tenant = rt.path, rt.String(), q.who.Subject, q.who.Tenant
	if e = contentType(h, rt.does); e != nil {
		return srv.reject(c, ofCaller(e, q.who, ""))
	}
	body, e := srv.readBody(conn, q, framing)
	if e != nil {
		return srv.reject(c, ofCaller(e, q.who, ""))
	}
	defer body.Release()
	if rt.does == listModels || rt.does == oneModel {
		return srv.answerModels(q, c)
	}
	q.readHead(h)
	if e = q.check(body, c.Response().Header.Set); e != nil {
		return srv.reject(c, e)
	}
	if uses := q.Model.UsesSessions() || q.snapshot.Config.Migration.On(); uses || q.Model.Queue.Counts(q.Arrived) {
		if q.session = SessionOf(h.Peek, q.Body); uses {
			q.Session = q.session
		}
	}
	if q.Model.Prices {
		if q.Body.Objective, e = ObjectiveOf(h.Peek); e != nil {
			return srv.reject(c, ofCaller(e, q.who, q.Model.Name))
		}
	}
	if q.Model.ForwardsAuthorization {
		q.forwardAuthorization(h)
	}
	if e = srv.admit(q, conn, h.Peek("X-Vllm-Priority")); e != nil {
		return srv.reject(c, e)
	}
	if rt.does == generate {
		if f := fanout.Begin(srv.Exchanges, &q.Request, q); f != nil { // nil unless there are several choices, which engines may serve apart
			q.fan = f
			f.WatchClient(conn)
			f.Run()
			srv.sendFan(c, f, q.ID)
			return nil
		}
	}
	q.Caller = q // its Ended, in admit.go, gives back the place and the lease; the exchanges of a fan have the fan as Caller
	x := srv.Exchanges.Begin(&q.Request)
	q.x = x
	x.WatchClient(conn)
	x.Run()
	srv.send(c, x)
	return nil
}

// authenticate says who calls.
func (srv *Edge) authenticate(s *Snapshot, rt *route, c *fiber.Ctx) (auth.Principal, *openai.Error) {
	if s.Authenticator == nil {
		return auth.Principal{}, nil
	}
	authorization, err := credentialsOf(rt, &c.Request().Header)
	var p auth.Principal
	if err == nil {
		p, err = s.Authenticator.Authenticate(authorization)
	}
	if err == nil {
		return p, nil
	}
	return auth.Principal{}, errRefused(err)
}

// contentType wants JSON, or a form where the route has one, as the bytes of a body are not looked at otherwise.
func contentType(h *fasthttp.RequestHeader, does doing) *openai.Error {
	if !does.reads() {
		return nil
	}
	if len(h.Peek(fiber.HeaderContentEncoding)) > 0 {
		return openai.ErrBadRequest(reason.ContentType, "", "The request body must not be encoded.")
	}
	want := "application/json"
	if does == passForm {
		want = "multipart/form-data"
	}
	if openai.MediaType(string(h.ContentType())) != want {
		return openai.ErrBadRequest(reason.ContentType, "", "The content type must be %s.", want)
	}
	return nil
}

// answerModels answers with the models that the caller may name, or with one of them.
func (srv *Edge) answerModels(q *request, c *fiber.Ctx) error {
	answer, e := q.snapshot.modelList(q.who), (*openai.Error)(nil)
	if q.route.does == oneModel {
		answer, e = q.snapshot.oneModel(q.who, q.name)
	}
	if e != nil {
		return srv.reject(c, e)
	}
	srv.identify(c)
	c.Response().Header.SetContentType("application/json")
	c.Response().SetBodyRaw(answer)
	srv.limitWrite(c)
	return nil
}

// relayed is an answer that is sent as it comes. SetClient is called first, with the client's connection. When handle has
// returned, the server reads it: a fan by Read, an exchange by WriteTo, which sends each event as it comes. At the end the server calls
// CloseWithError.
type relayed interface {
	Read(p []byte) (int, error)
	CloseWithError(err error) error
	SetClient(conn net.Conn)
}

var _ fasthttp.BodyWriterTo = (*exchange.Exchange)(nil) // else the server would call Read, and hold a buffer for it

// send hands the outcome of a request to the server.
func (srv *Edge) send(c *fiber.Ctx, x *exchange.Exchange) {
	h := &c.Response().Header
	var s relayed
	if x.Reply.Stream != nil && !x.HasOutcome { // else it ended before it began
		s = x
	}
	if x.Sum.Prefill != "" {
		h.Set("X-Pdrouter-Prefill", x.Sum.Prefill)
	}
	if x.Sum.Decode != "" {
		h.Set("X-Pdrouter-Decode", x.Sum.Decode)
	}
	srv.sendReply(c, x.Sum.RequestID, x.Sum.Reason, x.Reply, s)
}

// sendFan hands the outcome of a request for several choices to the server.
func (srv *Edge) sendFan(c *fiber.Ctx, f *fanout.Fan, id string) {
	why, rep, streams := f.Head(c.Response().Header.Set)
	var s relayed
	if streams {
		s = f
	}
	srv.sendReply(c, id, why, rep, s)
}

// sendReply hands an outcome to the server: a stream, if there is one, else the reply.
func (srv *Edge) sendReply(c *fiber.Ctx, id, why string, a exchange.Reply, s relayed) {
	h := &c.Response().Header
	switch {
	case s != nil:
		h.Set(headerRequestID, id)
		h.Set("X-Pdrouter-Reason", why)
		h.SetContentType("text/event-stream; charset=utf-8")
		h.Set(fiber.HeaderCacheControl, "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.SetClient(c.Context().Conn())
		c.Response().SetBodyStream(s, -1) // what the server then calls: see relayed
		return
	case a.Err != nil:
		h.Set(headerRequestID, id)
		srv.setError(c, a.Err)
	case a.Status == 0: // the client has left
		c.Response().SetStatusCode(499)
		c.Response().SetConnectionClose()
	default:
		h.Set(headerRequestID, id)
		h.Set("X-Pdrouter-Reason", why)
		h.SetContentType(a.ContentType)
		if a.Metadata != "" {
			h.Set("Metadata", a.Metadata)
		}
		c.Response().SetStatusCode(a.Status)
		if a.Status >= 400 && a.Status < 500 || a.Status == http.StatusNotImplemented {
			h.Set("X-Should-Retry", "false")
		}
		c.Response().SetBodyRaw(a.Body)
	}
	srv.limitWrite(c)
}

// reject answers a request that was not admitted, and notes it: it has no exchange, and so no Summary.
func (srv *Edge) reject(c *fiber.Ctx, e *openai.Error) error {
	srv.setError(c, e)
	srv.limitWrite(c)
	if refused := srv.Current().Refused; refused != nil {
		refused(e.Status, e.Reason.String())
	}
	level := slog.LevelInfo
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden || e.Status >= 500 {
		level = slog.LevelWarn
	}
	method, path := c.Method(), string(pathOf(c.Request().Header.RequestURI()))
	if c.Context().Conn().(*clientConn).unreadable {
		method, path = "", "" // the server could not read them
	}
	srv.Log.Log(context.Background(), level, "refused", "request_id", string(c.Response().Header.Peek(headerRequestID)),
		"method", method, "path", openai.Clip(path, maxLoggedPath), "remote", c.Context().RemoteAddr().String(), "subject", e.Subject,
		"tenant", e.Tenant, "model", e.Model, "status", e.Status, "reason", e.Reason.String(), "err", e.Err)
	return nil
}

// limitWrite limits each write of the answer.
func (srv *Edge) limitWrite(c *fiber.Ctx) {
	c.Context().Conn().(*clientConn).limit = srv.Current().Config.Timeouts.Write
}

// setError makes an error of the router's own the answer.
func (srv *Edge) setError(c *fiber.Ctx, e *openai.Error) {
	h := &c.Response().Header
	c.Response().SetStatusCode(e.Status)
	srv.identify(c)
	h.SetContentType("application/json")
	h.Set("X-Pdrouter-Reason", e.Reason.String())
	if e.NoRetry {
		h.Set("X-Should-Retry", "false")
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After-Ms", strconv.FormatInt(e.RetryAfter.Milliseconds(), 10))
		h.Set(fiber.HeaderRetryAfter, strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	if e.Challenge != "" {
		h.Set("Www-Authenticate", e.Challenge)
	}
	if e.Close {
		c.Response().SetConnectionClose()
	}
	path := string(pathOf(c.Request().Header.RequestURI()))
	c.Response().SetBodyRaw(errorsOf(path).AppendError(nil, e))
}

// identify gives the answer the request's id, if it has none yet.
func (srv *Edge) identify(c *fiber.Ctx) {
	if len(c.Response().Header.Peek(headerRequestID)) == 0 {
		c.Response().Header.Set(headerRequestID, requestID(&c.Request().Header))
	}
}

// headerRequestID is fiber.HeaderXRequestID as it is sent.
const headerRequestID = "X-Request-Id"

// readHead takes what is used of the request's head. Nothing else of it is looked at, and no field reaches an engine as it
// came.
func (q *request) readHead(h *fasthttp.RequestHeader) {
	q.ID = requestID(h)
	parents := slices.Clone(h.PeekAll("Traceparent")) // the next call writes to the same place
	in := trace.Parse(parents, h.PeekAll("Tracestate"))
	var t *trace.Trace
	if q.snapshot.Tracer != nil {
		in, t = trace.Begin(q.snapshot.Tracer, in, q.Arrived)
	}
	if in != "" {
		q.Forwarded = &leg.Forwarded{Context: in, Trace: t}
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

// endTrace ends the trace of a request that was refused. An exchange or a fan ends its own.
func (q *request) endTrace(c *fiber.Ctx) {
	t := q.Forwarded.Traced()
	if t == nil || q.x != nil || q.fan != nil {
		return
	}
	why := string(c.Response().Header.Peek("X-Pdrouter-Reason"))
	t.Finish(q.Pattern, time.Now(), why, trace.Attribute{Key: "http.route", Value: q.Pattern},
		trace.Attribute{Key: "http.response.status_code", Value: int64(c.Response().StatusCode())}, trace.Attribute{Key: trace.RequestModel, Value: q.model()},
		trace.Attribute{Key: "pdrouter.request_id", Value: q.ID}, trace.Attribute{Key: "pdrouter.reason", Value: why})
}

// forwardAuthorization forwards the client's credentials to the engines. Several are none: a proxy in
// front of the gateway may have checked another one.
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

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "req-" + hex.EncodeToString(b[:])
}
