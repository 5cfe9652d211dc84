package metadata

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"pdrouter/internal/refusal"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeAuthorizer takes tokens "write:engine", "read:role" and "all".
type fakeAuthorizer struct{}

type fakeRefusal struct{ status int }

func (e fakeRefusal) Error() string     { return "refused because of something secret" }
func (e fakeRefusal) HTTPStatus() int   { return e.status }
func (e fakeRefusal) Message() string   { return "no" }
func (e fakeRefusal) Challenge() string { return "Bearer" }
func (e fakeRefusal) Reason() string    { return "refused" }

func (fakeAuthorizer) Authorize(r *http.Request, a Access) (Caller, error) {
	kind, what, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ":")
	switch {
	case kind == "all":
		return Caller{}, nil
	case kind == "write" && a.Action == Write && a.Engine == what:
		return Caller{}, nil
	case kind == "read" && (a.Action == List || a.Action == Read && (a.Role == "" || a.Role == Role(what))):
		return Caller{}, nil
	case kind == "write" || kind == "read":
		return Caller{}, fakeRefusal{http.StatusForbidden}
	}
	return Caller{}, fakeRefusal{http.StatusUnauthorized}
}

// serve returns the routes over a store and the address they are at.
func serve(t *testing.T, s Store, v Voucher) string {
	t.Helper()
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Authorizer: fakeAuthorizer{}, Voucher: v, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

type exchange struct {
	status int
	header http.Header
	body   []byte
}

func send(t *testing.T, method, url, token string, body []byte, header ...string) exchange {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", ContentType)
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
	return exchange{resp.StatusCode, resp.Header, b}
}

// wantError checks status, shape and reason of an error.
func wantError(t *testing.T, name string, got exchange, status int, reason string) {
	t.Helper()
	var a struct {
		Error struct {
			Message, Type string
			Code          int
		}
	}
	if err := json.Unmarshal(got.body, &a); err != nil || got.status != status || a.Error.Code != status || a.Error.Type == "" || a.Error.Message == "" {
		t.Errorf("%s: got %d %s; want %d in OpenAI's shape", name, got.status, got.body, status)
	}
	if r := got.header.Get("X-PDRouter-Reason"); r != reason {
		t.Errorf("%s: reason is %q; want %q", name, r, reason)
	}
	if bytes.Contains(got.body, []byte("secret")) {
		t.Errorf("%s: the cause is told to the caller", name)
	}
	if retry := got.header.Get("X-Should-Retry"); retry != map[bool]string{true: "true", false: "false"}[status >= 500] {
		t.Errorf("%s: x-should-retry is %q", name, retry)
	}
}

func TestHandlerRefuses(t *testing.T) {
	s := NewMemory()
	base := serve(t, s, newFakeVoucher("gateway")) + "/metadata/v1/engines"
	now := time.Now()
	rec := record("prefill-0", uint64(now.UnixNano()), 2, 1)
	url := base + "/prefill-0/ranks/0/0/1"
	change := func(f func(*Record)) []byte {
		r := rec
		f(&r)
		return marshal(t, r)
	}
	foreign, err := rec.Sign(newFakeVoucher("stranger"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, method, url, token string
		body                     []byte
		header                   []string
		status                   int
		reason                   string
	}{
		{"no token", "PUT", url, "", marshal(t, rec), nil, 401, "refused"},
		{"another engine's token", "PUT", url, "write:prefill-1", marshal(t, rec), nil, 403, refusal.Insufficient},
		{"reader writes", "PUT", url, "read:prefill", marshal(t, rec), nil, 403, refusal.Insufficient},
		{"JSON", "PUT", url, "all", []byte("{}"), []string{"Content-Type", "application/json"}, 415, "content_type"},
		{"too large", "PUT", url, "all", make([]byte, MaxRecordBytes+1), nil, 413, "too_large"},
		{"garbage", "PUT", url, "all", []byte("garbage"), nil, 400, "bad_record"},
		{"empty", "PUT", url, "all", nil, nil, 400, "bad_record"},
		{"path names another engine", "PUT", base + "/prefill-1/ranks/0/0/1", "all", marshal(t, rec), nil, 400, "wrong_rank"},
		{"path names another rank", "PUT", base + "/prefill-0/ranks/0/0/0", "all", marshal(t, rec), nil, 400, "wrong_rank"},
		{"agent of another engine", "PUT", url, "all", change(func(r *Record) { r.Agent = "prefill-1@1/0/0/1" }), nil, 400, "wrong_agent"},
		{"agent of another rank", "PUT", url, "all", change(func(r *Record) { r.Agent = r.ID() + "/0/0/0" }), nil, 400, "wrong_agent"},
		{"agent of another generation", "PUT", url, "all", change(func(r *Record) { r.Generation-- }), nil, 400, "wrong_agent"},
		{"agent that no rebuild makes", "PUT", url, "all", change(func(r *Record) { r.Agent += "#1" }), nil, 400, "wrong_agent"},
		{"rank is no number", "PUT", base + "/prefill-0/ranks/0/0/x", "all", marshal(t, rec), nil, 404, "not_found"},
		{"rank with a sign", "PUT", base + "/prefill-0/ranks/0/0/+1", "all", marshal(t, rec), nil, 404, "not_found"},
		{"name that cannot be", "GET", base + "/a%20b", "all", nil, nil, 404, "not_found"},
		{"lives for ever", "PUT", url, "all", change(func(r *Record) { r.Expires = r.Published.Add(time.Hour) }), nil, 400, "bad_record"},
		{"lives not at all", "PUT", url, "all", change(func(r *Record) { r.Expires = r.Published }), nil, 400, "bad_record"},
		{"of next week", "PUT", url, "all", marshal(t, later(rec, 7*24*time.Hour)), nil, 400, "clock"},
		{"generation of next year", "PUT", url, "all", change(func(r *Record) { r.Generation = uint64(now.AddDate(1, 0, 0).UnixNano()) }), nil, 400, "clock"},
		{"of last week", "PUT", url, "all", marshal(t, later(rec, -7*24*time.Hour)), nil, 409, "stale"},
		{"signed by a stranger", "PUT", url, "all", marshal(t, foreign), nil, 403, refusal.Insufficient},
		{"unknown engine", "GET", base + "/prefill-0", "all", nil, nil, 404, "not_found"},
		{"unknown rank", "GET", url, "all", nil, nil, 404, "not_found"},
		{"read without token", "GET", base + "/prefill-0", "", nil, nil, 401, "refused"},
		{"list without token", "GET", base, "", nil, nil, 401, "refused"},
		{"delete without generation", "DELETE", url, "all", nil, nil, 400, "generation"},
		{"delete what is not there", "DELETE", url + "?generation=1", "all", nil, nil, 404, "not_found"},
		{"no such route", "GET", base + "/prefill-0/ranks", "all", nil, nil, 404, "not_found"},
		{"path with dots", "GET", base + "/x/../prefill-0", "all", nil, nil, 404, "not_found"},
		{"wrong method", "POST", url, "all", nil, nil, 405, "method"},
		{"delete another's", "DELETE", url + "?generation=1", "write:prefill-1", nil, nil, 403, refusal.Insufficient},
	} {
		got := send(t, c.method, c.url, c.token, c.body, c.header...)
		wantError(t, c.name, got, c.status, c.reason)
		if (got.status == 401) != (got.header.Get("WWW-Authenticate") != "") && got.status != 403 {
			t.Errorf("%s: WWW-Authenticate is %q", c.name, got.header.Get("WWW-Authenticate"))
		}
	}
	if names, err := s.List(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("the store holds %v, %v; want nothing", names, err)
	}
}

func TestFault39StaleOverTheRoutes(t *testing.T) {
	s := NewMemory()
	url := serve(t, s, newFakeVoucher("gateway")) + "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec := record("prefill-0", 7, 1, 0)
	if got := send(t, "PUT", url, "all", marshal(t, rec)); got.status != http.StatusNoContent {
		t.Fatalf("got %d %s; want 204", got.status, got.body)
	}
	before, err := s.Engine(t.Context(), "prefill-0")
	if err != nil {
		t.Fatal(err)
	}
	older := record("prefill-0", 6, 1, 0)
	wantError(t, "replay", send(t, "PUT", url, "all", marshal(t, rec)), 409, "stale")
	wantError(t, "older", send(t, "PUT", url, "all", marshal(t, later(rec, -time.Second))), 409, "stale")
	wantError(t, "older generation", send(t, "PUT", url, "all", marshal(t, later(older, time.Second))), 409, "stale")
	wantError(t, "delete of an older generation", send(t, "DELETE", url+"?generation=6", "all", nil), 409, "stale")
	after, err := s.Engine(t.Context(), "prefill-0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the store changed (-before +after):\n%s", diff)
	}
}

func TestFault41ReadersSeeOnlyTheirs(t *testing.T) {
	s := NewMemory()
	v := newFakeVoucher("gateway")
	base := serve(t, s, v) + "/metadata/v1/engines"
	for _, rec := range []Record{record("prefill-0", 7, 1, 0), record("decode-0", 7, 1, 0)} {
		if got := send(t, "PUT", base+"/"+rec.Engine+"/ranks/0/0/0", "write:"+rec.Engine, marshal(t, rec)); got.status != http.StatusNoContent {
			t.Fatalf("got %d %s; want 204", got.status, got.body)
		}
	}
	for _, path := range []string{"/prefill-0", "/prefill-0/ranks/0/0/0"} {
		for _, accept := range []string{ContentType, "application/json"} {
			got := send(t, "GET", base+path, "read:decode", nil, "Accept", accept)
			wantError(t, path, got, 403, refusal.Insufficient)
			if bytes.Contains(got.body, []byte{1, 2, 3}) || bytes.Contains(got.body, []byte("AQID")) {
				t.Errorf("%s: the blob is in the answer", path)
			}
		}
	}
	if got := send(t, "GET", base+"/prefill-0", "read:prefill", nil, "Accept", "application/json"); got.status != 200 || !bytes.Contains(got.body, []byte(`"engine":"prefill-0"`)) {
		t.Errorf("JSON view: got %d %s", got.status, got.body)
	}
	var list struct{ Engines []Listed }
	if got := send(t, "GET", base, "read:decode", nil); json.Unmarshal(got.body, &list) != nil || len(list.Engines) != 1 || list.Engines[0].Engine != "decode-0" || list.Engines[0].Ranks != 1 {
		t.Errorf("list: got %s; want decode-0 alone", got.body)
	}
}

// Whatever happens in the store, the caller gets a status that says whether to try again.
func TestHandlerStoreDown(t *testing.T) {
	s := &fakeStore{Memory: NewMemory(), down: errors.New("secret address refused")}
	base := serve(t, s, nil) + "/metadata/v1/engines"
	wantError(t, "read", send(t, "GET", base+"/prefill-0", "all", nil), 503, "store_unavailable")
	wantError(t, "list", send(t, "GET", base, "all", nil), 503, "store_unavailable")
}

func newClient(t *testing.T, url, token string, trust Voucher) *Client {
	t.Helper()
	c, err := NewClient(ClientConfig{URL: url, Timeout: 10 * time.Second}, func() (string, error) { return token, nil }, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClientOverTheRoutes(t *testing.T) {
	v := newFakeVoucher("gateway")
	url := serve(t, NewMemory(), v)
	c := newClient(t, url+"/", "all", v)
	ctx := t.Context()
	r0, r1 := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1)
	for _, rec := range []Record{r1, r0} {
		if err := c.Put(ctx, rec); err != nil {
			t.Fatal(err)
		}
	}
	recs, err := c.Engine(ctx, "prefill-0")
	if err != nil || len(recs) != 2 || recs[0].KeyID != "gateway" {
		t.Fatalf("got %+v, %v; want two records signed by the gateway", recs, err)
	}
	if _, err := newClient(t, url, "all", newFakeVoucher("other")).Engine(ctx, "prefill-0"); err == nil {
		t.Error("a record of an untrusted gateway was accepted")
	}
	for name, got := range map[string]error{
		"stale put":      c.Put(ctx, r0),
		"old generation": c.Delete(ctx, Incarnation{"prefill-0", 6}, r0.Rank),
	} {
		if !errors.Is(got, ErrStale) {
			t.Errorf("%s: got %v; want ErrStale", name, got)
		}
	}
	if err := c.Delete(ctx, r0.Incarnation, r0.Rank); err != nil {
		t.Error(err)
	}
	if recs, err := c.Engine(ctx, "prefill-0"); err != nil || len(recs) != 1 || recs[0].Rank != r1.Rank {
		t.Errorf("after the deletion of a rank: got %+v, %v; want the other", recs, err)
	}
	var status *StatusError
	if err := newClient(t, url, "none", nil).Put(ctx, later(r0, 1)); !errors.As(err, &status) || status.Status != 401 {
		t.Errorf("bad token: got %v; want status 401", err)
	}
	for name, cfg := range map[string]ClientConfig{"no URL": {}, "no scheme": {URL: "host:1"}, "negative": {URL: "http://h", Timeout: -1}} {
		if _, err := NewClient(cfg, func() (string, error) { return "", nil }, nil, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDirectoryWaitsForAllRanks(t *testing.T) {
	s := NewMemory()
	d := newClient(t, serve(t, s, nil), "all", nil).Directory()
	r0, r1 := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1)
	put(t, s, r0, nil)
	found := make(chan error, 1)
	go func() {
		recs, err := d.Engine(context.Background(), r0.Incarnation)
		if err == nil && len(recs) != 2 {
			err = errors.New("not all ranks")
		}
		found <- err
	}()
	put(t, s, r1, nil)
	if err := <-found; err != nil {
		t.Error(err)
	}
	if _, err := d.Engine(t.Context(), Incarnation{"prefill-0", 6}); !errors.Is(err, ErrStale) {
		t.Errorf("older generation: got %v; want ErrStale", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.Engine(ctx, Incarnation{"prefill-0", 8}); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("generation not published yet: got %v; want an error at the deadline", err)
	}
}

func TestTokenFileIsReadAgain(t *testing.T) {
	path := writeTemp(t, "one\n")
	token := TokenFile(path)
	check := func(want string) {
		t.Helper()
		if got, err := token(); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	check("one")
	rewrite(t, path, "three")
	check("three")
	rewrite(t, path, "")
	check("three")
	if _, err := TokenFile(path)(); err == nil {
		t.Error("an empty file gave a token")
	}
	if _, err := TokenFile(path + "x")(); err == nil {
		t.Error("a missing file gave a token")
	}
}
