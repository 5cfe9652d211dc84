package refengine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// Server serves the OpenAI routes of an engine.
type Server struct {
	engine   *Engine
	http     *fasthttp.Server
	draining atomic.Bool
}

// maxBody bounds the body of a request, in bytes.
const maxBody = 32 << 20

// NewServer returns a server of an engine's answers, for Serve.
func NewServer(e *Engine) *Server {
	s := &Server{engine: e}
	s.http = &fasthttp.Server{
		Handler: s.handle, Name: "refengine", NoDefaultContentType: true, CloseOnShutdown: true,
		IdleTimeout: 5 * time.Minute, ReadBufferSize: 16 << 10, MaxRequestBodySize: maxBody,
		Logger: quiet{}, ErrorHandler: refuse,
	}
	return s
}

// Serve answers on a listener until ctx ends, then lets the answers under way come to their end for at most drain.
func (s *Server) Serve(ctx context.Context, ln net.Listener, drain time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- s.http.Serve(watchedListener{ln}) }()
	select {
	case err := <-ended:
		return fmt.Errorf("refengine: serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := s.http.ShutdownWithContext(bound)
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// quiet drops fasthttp's own log: each answer that matters is counted by the engine.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// refuse answers what fasthttp could not read as a request.
func refuse(ctx *fasthttp.RequestCtx, err error) {
	e := badRequest("", "the request cannot be read: %.200s", err)
	if errors.Is(err, fasthttp.ErrBodyTooLarge) {
		e.Status = http.StatusRequestEntityTooLarge
	}
	ctx.SetConnectionClose()
	fail(ctx, e)
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	path := string(ctx.Path())
	if s.tokenizes(ctx, path) {
		return
	}
	want := fasthttp.MethodGet
	speaks, generates := dialects[path]
	if generates {
		want = fasthttp.MethodPost
	}
	if got := string(ctx.Method()); got != want && known(path) {
		ctx.Response.Header.Set("Allow", want)
		fail(ctx, &apiError{Status: http.StatusMethodNotAllowed, Type: "MethodNotAllowedError", Message: "Method Not Allowed"})
		return
	}
	if generates {
		s.generate(ctx, speaks)
		return
	}
	switch path {
	case "/v1/models":
		s.models(ctx)
	case "/health":
		if s.draining.Load() {
			ctx.SetStatusCode(http.StatusServiceUnavailable)
		}
	case "/metrics":
		ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
		ctx.SetBody(s.engine.Metrics())
	default:
		fail(ctx, &apiError{Status: http.StatusNotFound, Type: "NotFoundError", Message: "Not Found"})
	}
}

func known(path string) bool {
	switch path {
	case "/v1/models", "/health", "/metrics":
		return true
	}
	_, generates := dialects[path]
	return generates
}

func fail(ctx *fasthttp.RequestCtx, e *apiError) {
	ctx.SetStatusCode(e.Status)
	ctx.SetContentType("application/json")
	ctx.SetBody(e.body())
}

func (s *Server) models(ctx *fasthttp.RequestCtx) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created uint64 `json:"created"`
		Owner   string `json:"owned_by"`
		MaxLen  int    `json:"max_model_len,omitempty"`
		Parent  string `json:"parent,omitempty"` // of an adapter
	}
	c := s.engine.cfg
	all := []model{{c.Model, "model", c.Generation / uint64(time.Second), "pdrouter", c.MaxModelLen, ""}}
	for _, name := range c.Adapters {
		all = append(all, model{ID: name, Object: "model", Created: all[0].Created, Owner: all[0].Owner, Parent: c.Model})
	}
	b, err := json.Marshal(struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", all})
	if err != nil {
		fail(ctx, answerTo(err))
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

// generate answers one call. The client may leave at any time: what runs for it then ends.
func (s *Server) generate(ctx *fasthttp.RequestCtx, d dialect) {
	c, api := parseDialect(d, ctx.PostBody(), s.engine.cfg)
	if api != nil {
		fail(ctx, api)
		ctx.SetBody(d.errorBody(api))
		return
	}
	id := string(ctx.Request.Header.Peek("X-Request-Id"))
	if id == "" {
		var b [16]byte
		rand.Read(b[:]) // never fails: crypto/rand ends the process instead
		id = hex.EncodeToString(b[:])
	}
	var gone <-chan struct{}
	if w, ok := ctx.Conn().(*watchedConn); ok {
		gone = w.watch()
	}
	a, err := start(s.engine, c, id)
	if err != nil {
		s.refused(ctx, err)
		return
	}
	if c.stream {
		st, err := newStream(s.engine, a, gone)
		if err != nil {
			s.refused(ctx, err)
			return
		}
		ctx.SetContentType("text/event-stream; charset=utf-8")
		ctx.Response.Header.Set("Cache-Control", "no-cache")
		ctx.SetBodyStream(st, -1)
		return
	}
	if err := s.complete(a, gone); err != nil {
		s.refused(ctx, err)
		return
	}
	b, err := a.whole()
	if err != nil {
		fail(ctx, answerTo(err))
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

// complete takes all outputs of a call.
func (s *Server) complete(a *answer, gone <-chan struct{}) error {
	defer a.cancel(s.engine)
	for _, c := range a.choices {
		fault, cut := find(c.seq.faults, Cut)
		for ended := false; !ended; {
			o, err := await(c.seq, gone)
			if err != nil {
				return err
			}
			if cut && len(c.tokens) == fault.After {
				return errCut
			}
			ended, _ = c.take(o)
		}
	}
	return nil
}

// refused tells the client why there is no answer. One that has left, or is to be left alone, gets a cut connection.
func (s *Server) refused(ctx *fasthttp.RequestCtx, err error) {
	ctx.SetConnectionClose()
	if errors.Is(err, errCut) || errors.Is(err, ErrLeft) {
		_ = ctx.Conn().Close() // nobody is to hear of it
		return
	}
	fail(ctx, answerTo(err))
}
