package router

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pdrouter/internal/gather"
	"pdrouter/internal/httpsyntax"
	"pdrouter/internal/nonblock"
)

// upstreamConfig is how one engine is spoken to. Zero means the default.
type upstreamConfig struct {
	DialTimeout time.Duration // connect, and the TLS handshake; default 2s
	IdleTimeout time.Duration // an idle connection is closed after it; default 4s, below uvicorn's 5s
	MaxIdle     int           // idle connections kept; default 256
	TLS         *tls.Config   // for https; default: the system's roots, the URL's host name
	// Dial makes a connection instead of net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// field is one header field.
type field struct{ Name, Value string }

// upstreamRequest is one request to an engine. do does not keep it.
type upstreamRequest struct {
	Method string  // POST or GET; default POST if Body is not nil, else GET
	Path   string  // origin form, put behind the base URL's path; never the client's own bytes
	Header []field // beside Host, Content-Length and Accept-Encoding, which are set here
	Body   []byte
	Gaps   gather.Gaps // what Body goes without
	// Once has the request never be sent twice: it uses something up. A connection that was closed while it lay idle
	// then fails the request.
	Once bool
}

// hasBody reports whether there is a body, of which all may be gaps.
func (r *upstreamRequest) hasBody() bool { return r.Body != nil || len(r.Gaps) > 0 }

// resendWithin bounds how long a request may have been out to be sent again. An engine that closes an idle connection
// just when a request comes does so within a round trip; one that goes later may have been at work.
const resendWithin = time.Second

// earlyWithin bounds the wait for the answer of an engine that has closed the connection before it had the whole request.
const earlyWithin = time.Second

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
	errBadAnswer      = errors.New("not an acceptable HTTP answer")
	errAnswerSize     = errors.New("answer is too large")
	errAnswerHead     = fmt.Errorf("%w: its head", errAnswerSize)
	errBadRequestPart = errors.New("not an acceptable HTTP request")
)

// upstreamError is how a request to an engine failed. errors.Is finds errBadAnswer, errAnswerSize, io.ErrUnexpectedEOF
// (the answer was broken off) and, if the context ended it, context.Cause of that context.
type upstreamError struct {
	Phase upstreamPhase
	Err   error
}

func (e *upstreamError) Error() string {
	return fmt.Sprintf("router: upstream: %s: %v", e.Phase, e.Err)
}
func (e *upstreamError) Unwrap() error { return e.Err }

// upstream is one engine's connections. It is safe for concurrent use.
type upstream struct {
	cfg     upstreamConfig
	connect atomic.Int64 // the time for a connection, in nanoseconds
	address string       // host:port
	prefix  string       // the base URL's path without its last slash
	host    string       // the Host field and those that follow in every request
	name    string       // the URL's host, for https; "" for http
	tls     atomic.Pointer[tls.Config]
	idle    idleConns
	bufs    sync.Pool // of *nonblock.Buf, for its connections
}

// newUpstream is an engine at base, an http or https URL that may carry a path. No connection is made yet.
func newUpstream(base string, cfg upstreamConfig) (*upstream, error) {
	b, err := url.Parse(base)
	if err != nil || b.Host == "" || b.User != nil || b.RawQuery != "" || b.Fragment != "" ||
		(b.Scheme != "http" && b.Scheme != "https") {
		return nil, fmt.Errorf("router: upstream %q: want a base URL such as http://10.0.0.7:8000", base)
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = 4 * time.Second
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext // TCP_NODELAY is Go's default
	}
	u := &upstream{cfg: cfg, address: b.Host, prefix: strings.TrimSuffix(b.EscapedPath(), "/"),
		host: "Host: " + b.Host + "\r\nAccept-Encoding: identity\r\n"}
	u.idle.after = cfg.IdleTimeout
	u.bound(cfg.DialTimeout, cfg.MaxIdle)
	port := "80"
	if b.Scheme == "https" {
		port = "443"
		u.name = b.Hostname()
		u.secure(cfg.TLS)
	}
	if b.Port() == "" {
		u.address = net.JoinHostPort(b.Hostname(), port)
	}
	return u, nil
}

// secure sets the TLS configuration of connections to come, if the engine is spoken to over https; nil is the default.
func (u *upstream) secure(t *tls.Config) {
	if u.name == "" {
		return
	}
	if t == nil {
		t = new(tls.Config)
	}
	t = t.Clone()
	if t.ServerName == "" {
		t.ServerName = u.name
	}
	t.NextProtos = []string{"http/1.1"}
	u.tls.Store(t)
}

// bound sets the time for a connection and how many idle ones are kept, from now on; zero is the default.
func (u *upstream) bound(connect time.Duration, idle int) {
	if connect == 0 {
		connect = 2 * time.Second
	}
	if idle == 0 {
		idle = 256
	}
	u.connect.Store(int64(connect))
	u.idle.bound(idle)
}

// Limits returns what SetLimits has set.
func (u *upstream) Limits() (dialTimeout time.Duration, maxIdle int) {
	u.idle.mu.Lock()
	defer u.idle.mu.Unlock()
	return time.Duration(u.connect.Load()), u.idle.max
}

// SetDial replaces Config.Dial. It must be called before the first request.
func (u *upstream) SetDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	u.cfg.Dial = dial
}

// Idle returns the idle connections, the longest idle first.
func (u *upstream) Idle() []net.Conn {
	u.idle.mu.Lock()
	defer u.idle.mu.Unlock()
	conns := make([]net.Conn, len(u.idle.conns))
	for i, c := range u.idle.conns {
		conns[i] = c.nc
	}
	return conns
}

// Address returns host:port of the engine.
func (u *upstream) Address() string { return u.address }

// do sends req and reads the answer's head; the body is read from the response. The end of ctx ends the exchange at
// any moment, the reading of the body included. A request on a kept connection that was closed at once, before one byte
// came back, is sent once more, on a new connection; whatever comes of that, the first may have arrived as well: the
// answer says Resent, and a failure is never one of phaseDial. The error is an *upstreamError.
func (u *upstream) do(ctx context.Context, req *upstreamRequest) (*upstreamResponse, error) {
	if ctx.Err() != nil {
		return nil, &upstreamError{phaseDial, causeOf(ctx)}
	}
	again, begun := false, time.Now()
	if c := u.idle.take(begun, req.Body, req.Gaps); c != nil {
		resp, err := u.roundTrip(ctx, c, req, true)
		unsent := err != nil && errors.Is(err.Err, nonblock.ErrNotIdle)
		if err == nil || ctx.Err() != nil || !unsent && (err.Phase != phaseSend || !closedByPeer(err.Err) || req.Once || time.Since(begun) > resendWithin) {
			return result(resp, err)
		}
		again = !unsent
	}
	failed := phaseDial
	if again {
		failed = phaseSend
	}
	c, err := u.dial(ctx)
	if err != nil {
		return nil, &upstreamError{failed, err}
	}
	resp, uerr := u.roundTrip(ctx, c, req, false)
	switch {
	case resp != nil:
		resp.Resent = again
	case uerr.Phase == phaseDial:
		uerr.Phase = failed
	}
	return result(resp, uerr)
}

// closedByPeer reports whether err says that the other side has closed the connection, or broken it.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

// result keeps a nil *upstreamError from becoming an error.
func result(r *upstreamResponse, err *upstreamError) (*upstreamResponse, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// dial makes a new connection.
func (u *upstream) dial(ctx context.Context) (*engineConn, error) {
	limited, cancel := context.WithTimeout(ctx, time.Duration(u.connect.Load()))
	defer cancel()
	nc, err := u.cfg.Dial(limited, "tcp", u.address)
	if secure := u.tls.Load(); err == nil && secure != nil {
		t := tls.Client(nc, secure)
		if err = t.HandshakeContext(limited); err != nil {
			nc.Close()
		}
		nc = t
	}
	switch {
	case err == nil:
		return &engineConn{nc: nc, bufs: &u.bufs, idleCheck: nonblock.NewIdleCheck(nc), raw: nonblock.NewConn(nc, &u.bufs)}, nil
	case ctx.Err() != nil:
		return nil, causeOf(ctx)
	default:
		return nil, err
	}
}

// roundTrip sends req and reads the head of the answer. kept says that the connection was idle before. It closes the connection
// unless it returns a response.
func (u *upstream) roundTrip(ctx context.Context, c *engineConn, req *upstreamRequest, kept bool) (*upstreamResponse, *upstreamError) {
	r := &upstreamResponse{up: u, c: c, ctx: ctx}
	r.attach()
	c.got, c.put = 0, 0
	var err error
	c.out, err = u.appendHead(c.out[:0], req)
	switch {
	case err != nil:
	case kept && c.asks(req.Body, req.Gaps):
		err = c.ask(req.Body)
	default:
		err = c.send(req.Body, req.Gaps)
	}
	if err == nil {
		var h answerHead
		if h, err = c.readHead(); err == nil {
			r.begin(h)
			return r, nil
		}
	} else if closedByPeer(err) && ctx.Err() == nil {
		if h, ok := r.answeredEarly(); ok {
			r.begin(h)
			r.close, r.Early = true, true
			return r, nil
		}
	}
	phase := phaseSend
	switch {
	case c.got > 0:
		phase = phaseHead
	case errors.Is(err, errBadRequestPart):
		phase = phaseDial
	}
	r.detach()
	c.nc.Close()
	if ctx.Err() != nil {
		err = causeOf(ctx)
		if c.put == 0 {
			phase = phaseDial
		}
	} else if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, &upstreamError{phase, err}
}

// appendHead appends the request's head.
func (u *upstream) appendHead(dst []byte, req *upstreamRequest) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
		if req.hasBody() {
			method = http.MethodPost
		}
	}
	if !strings.HasPrefix(req.Path, "/") || strings.ContainsFunc(req.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return dst, fmt.Errorf("path %q: %w", req.Path, errBadRequestPart)
	}
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, u.prefix...)
	dst = append(dst, req.Path...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	dst = append(dst, u.host...)
	for _, f := range req.Header {
		if !httpsyntax.IsToken([]byte(f.Name)) || !httpsyntax.IsFieldValue([]byte(f.Value)) {
			return dst, fmt.Errorf("header field %q: %w", f.Name, errBadRequestPart)
		}
		dst = append(dst, f.Name...)
		dst = append(dst, ": "...)
		dst = append(dst, f.Value...)
		dst = append(dst, "\r\n"...)
	}
	if req.hasBody() {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(req.Body)+req.Gaps.Size()), 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...), nil
}

// Close closes the idle connections; those in use are closed when their answers end. Requests may still be made.
func (u *upstream) Close() { u.idle.close() }
