package router

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// edge is one HTTP server for clients. What it goes by cannot be changed while it runs: a reload of that starts another
// edge, which gets the connections that are still to come, and retires this one.
type edge struct {
	edgeConfig
	app     *fiber.App
	turn    turn
	retired atomic.Bool
	served  chan error // has room for one: why it accepts no more connections
}

// edgeConfig is all of a configuration that an edge goes by.
type edgeConfig struct {
	concurrent int
	read, idle time.Duration
}

func (c Config) edge() edgeConfig {
	return edgeConfig{concurrent: c.Limits.Concurrent, read: c.Timeouts.Read, idle: c.Timeouts.Idle}
}

// openEdge starts an edge that serves what arrives until it retires.
func (r *Router) openEdge(cfg edgeConfig, clients *arrivals) *edge {
	e := r.newEdge(cfg, clients)
	go func() { e.served <- e.app.Listener(&e.turn) }()
	return e
}

func (r *Router) newEdge(cfg edgeConfig, clients *arrivals) *edge {
	e := &edge{edgeConfig: cfg, turn: turn{arrivals: clients, over: make(chan struct{})}, served: make(chan error, 1)}
	e.app = fiber.New(fiber.Config{
		CaseSensitive:         true,
		StrictRouting:         true,
		DisableStartupMessage: true,
		ReadBufferSize:        headBytes,
		ReadTimeout:           cfg.read,
		IdleTimeout:           cfg.idle,
		Concurrency:           cfg.concurrent,
		ErrorHandler:          r.refuse,
	})
	server := e.app.Server()
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
		c := e.app.AcquireCtx(rc)
		defer e.app.ReleaseCtx(c)
		_ = r.handle(c)
		if !rc.Conn().(*arrival).settle() || e.retired.Load() || r.draining.Load() { // the client's next request goes to another edge, or another gateway
			c.Response().SetConnectionClose()
		}
	}
	return e
}

// hideBody has the server believe that a request has no body. So it reads none, and the connection hands it none: what it would
// do with one on its own (parse forms into files, take trailers for header fields, allocate what the head promises) is not done.
func hideBody(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	h.SetContentLength(0)
	h.Del(fiber.HeaderExpect)
	return fasthttp.RequestConfig{}
}

// retire gives the edge no more connections, and has it close each that it has with its next answer.
func (e *edge) retire() {
	e.retired.Store(true)
	close(e.turn.over)
}

// gone reports whether a retired edge has no connection left. Its own count is one short once it has stopped accepting.
func (e *edge) gone() bool {
	return len(e.served) > 0 && e.app.Server().GetOpenConnectionsCount() < 0
}

// refuse answers requests whose head the server could not read.
func (r *Router) refuse(c *fiber.Ctx, err error) error {
	c.Context().Conn().(*arrival).refused = true
	var fe *fiber.Error
	if !errors.As(err, &fe) {
		return r.fail(c, errInternal(err))
	}
	e := errFraming("The request could not be read.")
	switch fe.Code {
	case http.StatusRequestHeaderFieldsTooLarge:
		e = errHeadTooLarge("The request's head is larger than %d bytes.", headBytes)
	case http.StatusRequestTimeout:
		e = r.errUnfinished()
	}
	e.Err = err
	return r.fail(c, e)
}
