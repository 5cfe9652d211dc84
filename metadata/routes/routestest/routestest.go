// Package routestest is the metadata routes for tests: who may do what, requests and what they must be answered with, and a gateway's
// routes on a real listener, which stop and start. It is for tests alone.
//
// Read routestest.go, then gateway.go.
package routestest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
)

// Callers takes tokens that are keys of this map, and lets each write and read as package auth would.
type Callers map[string]routes.Caller

// Authorize implements routes.Authorizer.
func (f Callers) Authorize(r *http.Request, a routes.Access) (routes.Caller, error) {
	c, ok := f[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	switch {
	case !ok:
		return routes.Caller{}, Refusal(http.StatusUnauthorized)
	case a.Action == routes.Write && a.Engine != c.Engine, a.Apart != "":
		return c, Refusal(http.StatusForbidden)
	}
	return c, nil
}

// Direct is a Copy that asks the store each time, so that what a test has put can be read at once. It tells of no change.
type Direct struct{ Store metadata.Store }

// Engine implements routes.Copy.
func (d Direct) Engine(name string) ([]metadata.Record, bool) {
	recs, err := d.Store.Engine(context.Background(), name)
	return recs, err == nil
}

// Engines implements routes.Copy.
func (d Direct) Engines() []string {
	names, err := d.Store.List(context.Background())
	if err != nil {
		return nil
	}
	return names
}

// Subscribe implements routes.Copy.
func (Direct) Subscribe(func(engine string)) (cancel func()) { return func() {} }

// Parts returns what routes over a store need, for these callers. v may be nil.
func Parts(s metadata.Store, v metadata.Voucher, callers routes.Authorizer) routes.Parts {
	return routes.Parts{Store: s, Copy: Direct{s}, Authorizer: callers, Voucher: v, Log: metadatatest.Quiet()}
}

// Handler returns the routes.
func Handler(t *testing.T, parts routes.Parts) *routes.Handler {
	t.Helper()
	h, err := routes.New(routes.Config{}, parts)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// ServeParts serves the routes and returns their URL.
func ServeParts(t *testing.T, parts routes.Parts) string {
	t.Helper()
	srv := httptest.NewServer(Handler(t, parts))
	t.Cleanup(srv.Close)
	return srv.URL
}

// Serve is ServeParts of Parts.
func Serve(t *testing.T, s metadata.Store, v metadata.Voucher, callers routes.Authorizer) string {
	t.Helper()
	return ServeParts(t, Parts(s, v, callers))
}

// Transport carries requests to a handler without a network.
func Transport(h http.Handler) http.RoundTripper { return roundTripper{h} }

type roundTripper struct{ h http.Handler }

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	t.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// Tokens takes the tokens "write:ENGINE", "read:ROLE" and "all".
type Tokens struct{}

// Authorize implements routes.Authorizer.
func (Tokens) Authorize(r *http.Request, a routes.Access) (routes.Caller, error) {
	kind, what, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ":")
	switch {
	case kind == "all":
		return routes.Caller{}, nil
	case kind == "write" && a.Action == routes.Write && a.Engine == what:
		return routes.Caller{}, nil
	case kind == "read" && (a.Action == routes.List || a.Action == routes.Read && (a.Role == "" || a.Role == metadata.Role(what))):
		return routes.Caller{}, nil
	case kind == "write" || kind == "read":
		return routes.Caller{}, Refusal(http.StatusForbidden)
	}
	return routes.Caller{}, Refusal(http.StatusUnauthorized)
}

// Refusal is an authorizer's error that says how it is answered: its status.
type Refusal int

// Error is what callers must not see.
func (e Refusal) Error() string { return "refused because of something secret" }

// HTTPStatus returns e.
func (e Refusal) HTTPStatus() int { return int(e) }

// Message is for the caller.
func (e Refusal) Message() string { return "no" }

// Challenge is the answer's WWW-Authenticate.
func (e Refusal) Challenge() string { return "Bearer" }

// Reason is for the log.
func (e Refusal) Reason() string { return "refused" }

// Exchange is the answer to a request.
type Exchange struct {
	Status int
	Header http.Header
	Body   []byte
}

// Send sends a request with a token and headers, which are names and values in turn.
func Send(t *testing.T, method, url, token string, body []byte, header ...string) Exchange {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", metadata.ContentType)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Exchange{resp.StatusCode, resp.Header, b}
}

// WantError checks status, shape and reason of an error.
func WantError(t *testing.T, name string, got Exchange, status int, reason string) {
	t.Helper()
	var a struct {
		Error struct {
			Message, Type string
			Code          int
		}
	}
	if err := json.Unmarshal(got.Body, &a); err != nil || got.Status != status || a.Error.Code != status || a.Error.Type == "" || a.Error.Message == "" {
		t.Errorf("%s: got %d %s; want %d in OpenAI's shape", name, got.Status, got.Body, status)
	}
	if r := got.Header.Get("X-PDRouter-Reason"); r != reason {
		t.Errorf("%s: reason is %q; want %q", name, r, reason)
	}
	if bytes.Contains(got.Body, []byte("secret")) {
		t.Errorf("%s: the cause is told to the caller", name)
	}
	if retry := got.Header.Get("X-Should-Retry"); retry != map[bool]string{true: "true", false: "false"}[status >= 500] {
		t.Errorf("%s: x-should-retry is %q", name, retry)
	}
}
