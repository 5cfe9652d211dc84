package router

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// secure sets the TLS configuration of connections to come; nil is the default.
func (e *engine) secure(t *tls.Config) {
	e.tls.Store(t)
	e.up.SetTLS(t)
}

// dialControl connects to the engine's control routes.
func (e *engine) dialControl(ctx context.Context, network, address string) (net.Conn, error) {
	d := tls.Dialer{Config: e.tls.Load()}
	return d.DialContext(ctx, network, address)
}

// newControlClient returns a client of engines' control routes. dial makes its TLS connections; nil is the default.
func newControlClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second, DialTLSContext: dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it bears a token
	}
}

// controlClient returns the client of the engine's control routes.
func (r *Router) controlClient(e *engine) *http.Client {
	if e.client != nil {
		return e.client
	}
	return r.control
}
