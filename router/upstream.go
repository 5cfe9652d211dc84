package router

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// upstreamConfig is how one engine is spoken to. Zero means the default.
type upstreamConfig struct {
	DialTimeout time.Duration // connect, and the TLS handshake; default 2s
	IdleTimeout time.Duration // an idle connection is closed after it; default 4s, below uvicorn's 5s
	MaxIdle     int           // idle connections kept; default 256
	TLS         *tls.Config   // for https; default: the system's roots, the URL's host name
}

// field is one header field.
type field struct{ Name, Value string }

// upstreamRequest is one request to an engine. do does not keep it.
type upstreamRequest struct {
	Method string  // default POST if Body is not nil, else GET
	Path   string  // origin form, put behind the base URL's path; never the client's own bytes
	Header []field // beside Host, Content-Length and Accept-Encoding, which are set here
	Body   []byte
}

// Where a request to an engine failed.
type upstreamPhase uint8

const (
	phaseDial upstreamPhase = iota // no byte of the request has left: it is safe to ask another engine
	phaseSend                      // some of the request may have arrived, no byte of an answer came
	phaseHead                      // the answer's head was broken off or is not acceptable
	phaseBody                      // the head was read, the body was broken off or is not acceptable
)

func (p upstreamPhase) String() string { return [...]string{"dial", "send", "head", "body"}[p] }

var (
	errBadAnswer  = errors.New("not an acceptable HTTP answer")
	errAnswerSize = errors.New("answer is too large")
)

// upstreamError is how a request to an engine failed. errors.Is finds errBadAnswer, errAnswerSize, io.ErrUnexpectedEOF
// (the answer was broken off) and, if the context ended it, context.Cause of that context.
type upstreamError struct {
	Phase upstreamPhase
	Err   error
}

func (e *upstreamError) Error() string { return fmt.Sprintf("router: upstream: %s: %v", e.Phase, e.Err) }
func (e *upstreamError) Unwrap() error { return e.Err }

// upstream is one engine's connections. It is safe for concurrent use.
type upstream struct{}

// newUpstream is an engine at base, an http or https URL that may carry a path. No connection is made yet.
func newUpstream(base string, cfg upstreamConfig) (*upstream, error) { return &upstream{}, nil }

// do sends req and reads the answer's head; the body is read from the response. The end of ctx ends the exchange at
// any moment, the reading of the body included. A request on a kept connection that was closed before one byte came
// back is sent once more, on a new connection. The error is an *upstreamError.
func (u *upstream) do(ctx context.Context, req *upstreamRequest) (*upstreamResponse, error) {
	return nil, &upstreamError{Err: errors.ErrUnsupported}
}

// Close closes the idle connections; those in use are closed when their answers end. Requests may still be made.
func (u *upstream) Close() {}

// upstreamResponse is one answer. It belongs to one goroutine at a time, and must be closed.
type upstreamResponse struct {
	Status      int
	ContentType string // as sent
}

// Header is the value of the first field of that name, nil if there is none; valid until Close.
func (r *upstreamResponse) Header(name string) []byte { return nil }

// Read reads the body. It returns io.EOF only if the whole body was read; a body that was cut is an *upstreamError.
func (r *upstreamResponse) Read(p []byte) (int, error) { return 0, nil }

// ReadAll appends the rest of the body to dst. More than max bytes is an error with errAnswerSize.
func (r *upstreamResponse) ReadAll(dst []byte, max int) ([]byte, error) { return dst, nil }

// Close gives the connection back if the whole body was read, and closes it if not. It may be called twice.
func (r *upstreamResponse) Close() {}
