// Package upstream is the gateway's HTTP/1.1 client towards engines: requests, kept connections, responses, and their cancellation.
//
// It owns the connections to one engine (Client) and reads responses strictly: a response that two parsers could understand
// differently, or that has no known end, is an error. It says at which phase a request failed, because the caller may only ask
// another engine if no byte has left. It does not know what a body means, when to retry, or what a failure says about an engine: the
// legs, health checks and watchers of their callers decide that. A waiting request holds no buffer.
//
// Read upstream.go for a request, conn.go for its connection, response.go for the answer's body, cancel.go for what ends a wait. head.go reads
// an answer's head and says when it is not acceptable.
package upstream

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

// idleTimeout is when an idle connection is closed: below the 5 s after which uvicorn closes its side.
const idleTimeout = 4 * time.Second

// Field is one header field.
type Field struct{ Name, Value string }

// Request is one request to an engine. Do does not keep it.
type Request struct {
	Method string  // POST or GET; default POST if Body is not nil, else GET
	Path   string  // origin form, appended to the base URL's path; never the client's own bytes
	Header []Field // beside Host, Content-Length and Accept-Encoding, which are set here
	Body   []byte
	Gaps   gather.Gaps // what Body goes without
	// Once forbids to send the request twice, because it uses something up. A connection that was closed while it was idle
	// then fails the request.
	Once bool
}

// hasBody reports whether there is a body, of which all may be gaps.
func (r *Request) hasBody() bool { return r.Body != nil || len(r.Gaps) > 0 }

// resendWithin bounds how long a request may have been out to be sent again. An engine that closes an idle connection
// just when a request comes does so within a round trip; one that goes later may have been at work.
const resendWithin = time.Second

// earlyWithin bounds the wait for the answer of an engine that has closed the connection before it had the whole request.
const earlyWithin = time.Second

// Phase is where a request to an engine failed.
type Phase uint8

const (
	PhaseDial Phase = iota // no byte of the request has left: it is safe to ask another engine
	PhaseSend              // some of the request may have arrived, no byte of an answer came
	PhaseHead              // the answer's head was broken off or is not acceptable
	PhaseBody              // the head was read, the body was broken off or is not acceptable
)

func (p Phase) String() string { return [...]string{"dial", "send", "head", "body"}[p] }

var (
	ErrBadResponse  = errors.New("not an acceptable HTTP answer")
	ErrTooLarge     = errors.New("answer is too large")
	ErrHeadTooLarge = fmt.Errorf("%w: its head", ErrTooLarge)
	errBadRequest   = errors.New("not an acceptable HTTP request")
)

// Error is how a request to an engine failed. errors.Is finds ErrBadResponse, ErrTooLarge, io.ErrUnexpectedEOF
// (the answer was broken off) and, if the context ended it, context.Cause of that context.
type Error struct {
	Phase Phase
	Err   error
}

func (e *Error) Error() string {
	return fmt.Sprintf("router: upstream: %s: %v", e.Phase, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }

// Client sends requests to one engine over kept connections. It is safe for concurrent use.
type Client struct {
	dialer  func(ctx context.Context, network, address string) (net.Conn, error)
	connect atomic.Int64 // the time for a connection, in nanoseconds
	address string       // host:port
	prefix  string       // the base URL's path without its last slash
	host    string       // the Host field and those that follow in every request
	name    string       // the URL's host, for https; "" for http
	tls     atomic.Pointer[tls.Config]
	idle    idleConns
	bufs    sync.Pool // of *nonblock.Buf, for its connections
}

// New returns the Client of the engine at base, an http or https URL that may have a path. It does not connect.
func New(base string) (*Client, error) {
	b, err := url.Parse(base)
	if err != nil || b.Host == "" || b.User != nil || b.RawQuery != "" || b.Fragment != "" ||
		(b.Scheme != "http" && b.Scheme != "https") {
		return nil, fmt.Errorf("router: upstream %q: want a base URL such as http://10.0.0.7:8000", base)
	}
	u := &Client{
		dialer:  new(net.Dialer).DialContext, // TCP_NODELAY is Go's default
		address: b.Host, prefix: strings.TrimSuffix(b.EscapedPath(), "/"),
		host: "Host: " + b.Host + "\r\nAccept-Encoding: identity\r\n",
	}
	u.SetLimits(0, 0)
	port := "80"
	if b.Scheme == "https" {
		port = "443"
		u.name = b.Hostname()
		u.SetTLS(nil)
	}
	if b.Port() == "" {
		u.address = net.JoinHostPort(b.Hostname(), port)
	}
	return u, nil
}

// SetTLS sets the TLS configuration of new connections if the engine has an https URL. nil means the default.
func (u *Client) SetTLS(t *tls.Config) {
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

// SetLimits changes how long a connect may take and how many idle connections are kept. Zero means the default.
func (u *Client) SetLimits(connect time.Duration, idle int) {
	if connect == 0 {
		connect = 2 * time.Second
	}
	if idle == 0 {
		idle = 256
	}
	u.connect.Store(int64(connect))
	u.idle.bound(idle)
}

// Limits returns the current limits, defaults included.
func (u *Client) Limits() (dialTimeout time.Duration, maxIdle int) {
	u.idle.mu.Lock()
	defer u.idle.mu.Unlock()
	return time.Duration(u.connect.Load()), u.idle.max
}

// SetDial makes connections by dial instead of net.Dialer. Call it before the first request.
func (u *Client) SetDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	u.dialer = dial
}

// Idle returns the idle connections, the longest idle first.
func (u *Client) Idle() []net.Conn {
	u.idle.mu.Lock()
	defer u.idle.mu.Unlock()
	conns := make([]net.Conn, len(u.idle.conns))
	for i, c := range u.idle.conns {
		conns[i] = c.nc
	}
	return conns
}

// Address returns host:port of the engine.
func (u *Client) Address() string { return u.address }

// Do sends req and reads the head of the response; the caller reads the body and closes the response. The end of ctx ends the
// request at any moment, while the body is read, too. If a kept connection is closed at once, before one byte came back, the
// request is sent once more on a new connection. The first one may have arrived as well: the response says Resent, and a failure
// is never one of PhaseDial. The error is an *Error.
func (u *Client) Do(ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, &Error{PhaseDial, causeOf(ctx)}
	}
	again, begun := false, time.Now()
	if c := u.idle.take(begun, req.Body, req.Gaps); c != nil {
		resp, err := u.roundTrip(ctx, c, req, true)
		unsent := err != nil && errors.Is(err.Err, nonblock.ErrNotIdle)
		if err == nil || ctx.Err() != nil || !unsent && (err.Phase != PhaseSend || !closedByPeer(err.Err) || req.Once || time.Since(begun) > resendWithin) {
			return result(resp, err)
		}
		again = !unsent
	}
	failed := PhaseDial
	if again {
		failed = PhaseSend
	}
	c, err := u.dial(ctx)
	if err != nil {
		return nil, &Error{failed, err}
	}
	resp, uerr := u.roundTrip(ctx, c, req, false)
	switch {
	case resp != nil:
		resp.Resent = again
	case uerr.Phase == PhaseDial:
		uerr.Phase = failed
	}
	return result(resp, uerr)
}

// closedByPeer reports whether err says that the other side has closed the connection, or broken it.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

// result keeps a nil *Error from becoming an error.
func result(r *Response, err *Error) (*Response, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// dial makes a new connection.
func (u *Client) dial(ctx context.Context) (*conn, error) {
	limited, cancel := context.WithTimeout(ctx, time.Duration(u.connect.Load()))
	defer cancel()
	nc, err := u.dialer(limited, "tcp", u.address)
	if secure := u.tls.Load(); err == nil && secure != nil {
		t := tls.Client(nc, secure)
		if err = t.HandshakeContext(limited); err != nil {
			nc.Close()
		}
		nc = t
	}
	switch {
	case err == nil:
		return &conn{nc: nc, bufs: &u.bufs, idleCheck: nonblock.NewIdleCheck(nc), raw: nonblock.NewConn(nc, &u.bufs)}, nil
	case ctx.Err() != nil:
		return nil, causeOf(ctx)
	default:
		return nil, err
	}
}

// roundTrip sends req and reads the head of the answer. kept says that the connection was idle before. It closes the connection
// unless it returns a response.
func (u *Client) roundTrip(ctx context.Context, c *conn, req *Request, kept bool) (*Response, *Error) {
	r := &Response{up: u, c: c, ctx: ctx}
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
			r.setHead(h)
			return r, nil
		}
	} else if closedByPeer(err) && ctx.Err() == nil {
		if h, ok := r.answeredEarly(); ok {
			r.setHead(h)
			r.close, r.Early = true, true
			return r, nil
		}
	}
	phase := PhaseSend
	switch {
	case c.got > 0:
		phase = PhaseHead
	case errors.Is(err, errBadRequest):
		phase = PhaseDial
	}
	r.detach()
	c.nc.Close()
	if ctx.Err() != nil {
		err = causeOf(ctx)
		if c.put == 0 {
			phase = PhaseDial
		}
	} else if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, &Error{phase, err}
}

// appendHead appends the request's head.
func (u *Client) appendHead(dst []byte, req *Request) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
		if req.hasBody() {
			method = http.MethodPost
		}
	}
	if !strings.HasPrefix(req.Path, "/") || strings.ContainsFunc(req.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return dst, fmt.Errorf("path %q: %w", req.Path, errBadRequest)
	}
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, u.prefix...)
	dst = append(dst, req.Path...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	dst = append(dst, u.host...)
	for _, f := range req.Header {
		if !httpsyntax.IsToken([]byte(f.Name)) || !httpsyntax.IsFieldValue([]byte(f.Value)) {
			return dst, fmt.Errorf("header field %q: %w", f.Name, errBadRequest)
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
func (u *Client) Close() { u.idle.close() }
