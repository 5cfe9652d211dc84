package edge

import (
	"errors"
	"net/http"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"pdrouter/router/config"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// newServer returns the HTTP server for clients. limits.concurrent, timeouts.read and timeouts.idle are those of cfg as long as it runs.
func (r *Edge) newServer(cfg *config.Config) *fiber.App {
	app := fiber.New(fiber.Config{
		CaseSensitive:         true,
		StrictRouting:         true,
		DisableStartupMessage: true,
		ReadBufferSize:        HeadBytes,
		ReadTimeout:           cfg.Timeouts.Read,
		IdleTimeout:           cfg.Timeouts.Idle,
		Concurrency:           cfg.Limits.Concurrent,
		ErrorHandler:          r.refuse,
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
		_ = r.handle(c)
		if !rc.Conn().(*clientConn).reusable() || r.draining.Load() { // the client's next request goes to another gateway
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

// refuse answers requests whose head the server could not read. The server's error quotes the head, which may have
// credentials in it, so it goes neither to the client nor to the log.
func (r *Edge) refuse(c *fiber.Ctx, err error) error {
	c.Context().Conn().(*clientConn).refused = true
	var fe *fiber.Error
	if !errors.As(err, &fe) {
		return r.fail(c, openai.ErrInternal(nil))
	}
	e := openai.ErrFraming("The request could not be read.")
	switch fe.Code {
	case http.StatusRequestHeaderFieldsTooLarge:
		e = openai.NewError(reason.HeadTooLarge, "The request's head is larger than %d bytes.", HeadBytes)
	case http.StatusRequestTimeout:
		e = r.errUnfinished()
	}
	return r.fail(c, e)
}
