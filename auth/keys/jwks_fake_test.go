package keys_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// fakeIssuer serves a key set over real HTTP, on connections in memory, so that it can be in a bubble.
type fakeIssuer struct {
	conns chan net.Conn
	done  chan struct{}

	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []time.Time
}

// newFakeIssuer starts an issuer with these keys; it ends with the test.
func newFakeIssuer(t *testing.T, keys ...*keys.Key) *fakeIssuer {
	t.Helper()
	f := &fakeIssuer{conns: make(chan net.Conn), done: make(chan struct{})}
	f.publish(t, keys...)
	srv := &http.Server{Handler: f}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(f) }()
	t.Cleanup(func() {
		srv.Close()
		<-served
	})
	return f
}

func (f *fakeIssuer) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *fakeIssuer) Close() error   { close(f.done); return nil }
func (f *fakeIssuer) Addr() net.Addr { return &net.TCPAddr{} }

func (f *fakeIssuer) transport() http.RoundTripper {
	return &http.Transport{DisableKeepAlives: true, DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		select {
		case f.conns <- far:
			return near, nil
		case <-f.done:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
}

func (f *fakeIssuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, time.Now())
	answer := f.answer
	f.mu.Unlock()
	answer(w, r)
}

func (f *fakeIssuer) will(answer http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fakeIssuer) publish(t *testing.T, keys ...*keys.Key) { f.will(says(jwksOf(t, keys...))) }

func (f *fakeIssuer) questions() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.asked...)
}

func says(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }
}

func jwksOf(t testing.TB, of ...*keys.Key) string {
	t.Helper()
	b, err := keytest.Trust(t, of...).JWKS()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
