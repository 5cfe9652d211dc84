// Package edge is the server towards clients: it accepts connections, reads requests strictly, checks them (the caller's
// credentials and limits), admits them (a place in the model's queue), has each served by an exchange or a fan-out, and sends what came of
// it. A request is admitted when it has its place: then it has an exchange and a Summary. http.go has one request from its head to its
// answer; read it first. It and edge.go alone know the HTTP library. It talks to no engine. Its listener is any net.Listener: that of
// internal/gateway accepts on addresses that may change, and does nothing else.
package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"pdrouter/auth"
	"pdrouter/internal/disconnect"
	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
	"pdrouter/router/trace"
)

// Authenticator says who calls, from the value of the Authorization header. It must not block and be safe for concurrent
// use. An error with a method HTTPStatus() int that returns 403 or 503 is answered with that, every other with 401; its
// Challenge() string, if it has one, is the answer's WWW-Authenticate. The reason of a 503 is its Reason() string, if package
// reason has it with that status, else no_keys.
type Authenticator interface {
	Authenticate(authorization string) (auth.Principal, error)
}

// Snapshot is the edge's part of one configuration: what a client's request is read, checked and admitted by. It is never changed.
type Snapshot struct {
	Config        *config.Config
	Fleet         *fleet.Fleet
	BodyLimits    openai.Limits                // of bodies
	Sealer        *openai.Sealer               // nil: bodies keep their own cache_salt
	Authenticator Authenticator                // nil: every caller is accepted
	Limiter       Limiter                      // nil: no caller is limited
	Responses     stored.Responses             // nil: stored responses cannot be had
	Refused       func(status int, why string) // called once per request that was answered before it was admitted; may be nil
	Tracer        trace.Tracer                 // nil: no request is traced, and engines get the client's trace context as it came
	Exchange      *exchange.Snapshot
}

// Parts are what the edge works with.
type Parts struct {
	Log         *slog.Logger
	Current     func() *Snapshot // what the next request is read and admitted by
	Disconnects *disconnect.Watcher
	Exchanges   *exchange.Exchanges
	Backgrounds *stored.Background
	Serves      func() bool // whether an engine may serve, for some model
}

// Edge is the server towards clients: it reads requests, admits them, has them served, and sends what came of them. It is safe for
// concurrent use.
type Edge struct {
	Parts
	bodies clientBodies

	draining   atomic.Bool
	askedReady atomic.Bool   // a client has asked for /readyz
	closing    chan struct{} // closed when requests wait for a place no longer
	endWaits   func()        // closes it, once
}

// New returns an edge that serves no listener yet.
func New(parts Parts) *Edge {
	r := &Edge{Parts: parts, closing: make(chan struct{})}
	r.endWaits = sync.OnceFunc(func() { close(r.closing) })
	return r
}

// Draining reports whether Drain was called.
func (srv *Edge) Draining() bool { return srv.draining.Load() }

// AskedReady reports whether a client has asked for the readiness, and so looks at the end of it.
func (srv *Edge) AskedReady() bool { return srv.askedReady.Load() }

// BodyBytes is how much memory is held for request bodies.
func (srv *Edge) BodyBytes() int64 { return srv.bodies.held.Load() }

// Drain makes readiness probes fail and answers close their connections. Requests are served as before.
func (srv *Edge) Drain() {
	if !srv.draining.Swap(true) {
		srv.Log.Info("draining", "requests", srv.Exchanges.Count())
	}
}

// answerProbe returns the status of a probe at the clients' listener.
func (srv *Edge) answerProbe(does doing) int {
	if does == readiness {
		srv.askedReady.Store(true)
		if srv.draining.Load() || !srv.Serves() {
			return http.StatusServiceUnavailable
		}
	}
	return http.StatusOK
}

// newcomer is how long the stopping router waits for the first byte of a connection.
const newcomer = time.Second

// Serve answers clients on ln until ctx ends, then lets the requests under way finish for at most the drain time,
// cuts the rest with an error event, and returns. It closes ln, and serves connections that were accepted before. Call it once.
func (srv *Edge) Serve(ctx context.Context, ln net.Listener) error {
	clients := newListener(ln)
	clients.most, clients.refuse = srv.Current().Config.Limits.Concurrent, srv.refuseConnection
	accepting := make(chan error, 1)
	go func() { accepting <- clients.run() }()
	server := srv.newServer(srv.Current().Config)
	go func() { _ = server.Listener(clients) }() // it ends when clients does
	var failed error
	select {
	case failed = <-accepting:
	case <-ctx.Done():
	}
	srv.Drain()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), srv.Current().Config.Timeouts.Drain)
	defer cancel()
	_ = ln.Close() // it may have been closed already
	if failed == nil {
		<-accepting
	}
	for clients.closeSilent(time.Now().Add(-newcomer)) && stop.Err() == nil {
		select {
		case <-stop.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	clients.closeSilent(time.Now().Add(time.Hour))
	err, late := server.Server().ShutdownWithContext(stop), false // connections are closed when they are idle
	if late = errors.Is(err, context.DeadlineExceeded); late {
		srv.turnAway()
		clients.stopReading()
		srv.Exchanges.ShutDown()
		err = nil
	}
	// Answers are on their way out: give them the time of one write, at most a second or so. A client that has not read its answer by then
	// would hold the request, and what was taken for it, for timeouts.write.
	for i := 0; i < 200 && (srv.Exchanges.Count() > 0 || late && clients.openCount() > 0); i++ {
		if i == 100 {
			clients.stopWriting()
		}
		time.Sleep(10 * time.Millisecond)
	}
	if failed != nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("router: serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// refuseConnection answers and closes a connection beyond limits.concurrent. It runs on the goroutine that accepts all others, so a client
// with TLS gets no answer: the handshake would have to be waited for. A new connection takes the answer of one without TLS at once.
func (srv *Edge) refuseConnection(conn net.Conn) {
	defer conn.Close()
	e, id := openai.NewError(reason.TooManyConnections, "Too many client connections are open."), newRequestID()
	if refused := srv.Current().Refused; refused != nil {
		refused(e.Status, e.Reason.String())
	}
	srv.Log.Warn("refused", "request_id", id, "remote", conn.RemoteAddr().String(), "status", e.Status, "reason", e.Reason.String())
	if _, secure := conn.(*tls.Conn); secure {
		return
	}
	body := openai.ShapeCompletions.AppendError(nil, e)
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
		"X-Request-Id: %s\r\nX-Pdrouter-Reason: %s\r\nConnection: close\r\n\r\n%s",
		e.Status, http.StatusText(e.Status), len(body), id, e.Reason, body)
}

// newServer returns the HTTP server for clients. timeouts.read and timeouts.idle are those of cfg as long as it runs.
func (srv *Edge) newServer(cfg *config.Config) *fiber.App {
	app := fiber.New(fiber.Config{
		CaseSensitive:         true,
		StrictRouting:         true,
		DisableStartupMessage: true,
		ReadBufferSize:        HeadBytes,
		ReadTimeout:           cfg.Timeouts.Read,
		IdleTimeout:           cfg.Timeouts.Idle,
		Concurrency:           2 * cfg.Limits.Concurrent, // the listener holds the limit; a connection that has ended counts here for a moment
		ErrorHandler:          srv.answerUnreadable,
	})
	server := app.Server()
	server.CloseOnShutdown = true
	server.NoDefaultServerHeader = true
	server.ReduceMemoryUsage = true // a connection that waits, for a request or for the end of a stream, holds no reader
	server.HeaderReceived = hideBody
	server.DisablePreParseMultipartForm = true
	// Fiber's own router is passed by: it would answer unknown methods itself, and there is one route table (routes.go).
	server.Handler = func(rc *fasthttp.RequestCtx) {
		// Header names here are written as they are sent, so that none has to be normalized each time that it is used.
		rc.Request.Header.DisableNormalizing()
		rc.Response.Header.DisableNormalizing()
		c := app.AcquireCtx(rc)
		defer app.ReleaseCtx(c)
		_ = srv.handle(c)
		if !rc.Conn().(*clientConn).finishRequest() || srv.draining.Load() { // the client's next request goes to another gateway
			c.Response().SetConnectionClose()
		}
	}
	return app
}

// hideBody has the server believe that a request has no body. So it reads none, and the connection hands it none: what it would
// do with one on its own (parse forms into files, take trailers for header fields, allocate what the head promises) is not done.
func hideBody(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	h.SetContentLength(0)
	h.Del(fiber.HeaderExpect)
	return fasthttp.RequestConfig{}
}

// answerUnreadable answers requests whose head the server could not read. The server's error quotes the head, which may have
// credentials in it, so it goes neither to the client nor to the log.
func (srv *Edge) answerUnreadable(c *fiber.Ctx, err error) error {
	conn := c.Context().Conn().(*clientConn)
	conn.unreadable = true
	conn.lingers.Store(true)
	var fe *fiber.Error
	if !errors.As(err, &fe) {
		return srv.reject(c, openai.ErrInternal(nil))
	}
	e := openai.ErrFraming("The request could not be read.")
	switch fe.Code {
	case http.StatusRequestHeaderFieldsTooLarge:
		e = openai.NewError(reason.HeadTooLarge, "The request's head is larger than %d bytes.", HeadBytes)
	case http.StatusRequestTimeout:
		e = srv.errUnfinished()
	}
	return srv.reject(c, e)
}
