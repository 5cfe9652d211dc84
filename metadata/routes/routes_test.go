package routes_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

func TestHandlerRefuses(t *testing.T) {
	s := store.NewMemory()
	base := routestest.Serve(t, s, metadatatest.NewVoucher("gateway"), routestest.Tokens{}) + "/metadata/v1/engines"
	now := time.Now()
	rec := metadatatest.Record("prefill-0", uint64(now.UnixNano()), 2, 1)
	url := base + "/prefill-0/ranks/0/0/1"
	change := func(f func(*metadata.Record)) []byte {
		r := rec
		f(&r)
		return metadatatest.Marshal(t, r)
	}
	foreign, err := rec.Sign(metadatatest.NewVoucher("stranger"))
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
		{"no token", "PUT", url, "", metadatatest.Marshal(t, rec), nil, 401, "refused"},
		{"another engine's token", "PUT", url, "write:prefill-1", metadatatest.Marshal(t, rec), nil, 403, refusal.Insufficient},
		{"reader writes", "PUT", url, "read:prefill", metadatatest.Marshal(t, rec), nil, 403, refusal.Insufficient},
		{"JSON", "PUT", url, "all", []byte("{}"), []string{"Content-Type", "application/json"}, 415, "content_type"},
		{"too large", "PUT", url, "all", make([]byte, metadata.MaxRecordBytes+1), nil, 413, "too_large"},
		{"garbage", "PUT", url, "all", []byte("garbage"), nil, 400, "bad_record"},
		{"empty", "PUT", url, "all", nil, nil, 400, "bad_record"},
		{"path names another engine", "PUT", base + "/prefill-1/ranks/0/0/1", "all", metadatatest.Marshal(t, rec), nil, 400, "wrong_rank"},
		{"path names another rank", "PUT", base + "/prefill-0/ranks/0/0/0", "all", metadatatest.Marshal(t, rec), nil, 400, "wrong_rank"},
		{"agent of another engine", "PUT", url, "all", change(func(r *metadata.Record) { r.Agent = "prefill-1@1/0/0/1" }), nil, 400, "wrong_agent"},
		{"agent of another rank", "PUT", url, "all", change(func(r *metadata.Record) { r.Agent = r.ID() + "/0/0/0" }), nil, 400, "wrong_agent"},
		{"agent of another generation", "PUT", url, "all", change(func(r *metadata.Record) { r.Generation-- }), nil, 400, "wrong_agent"},
		{"agent with something behind it", "PUT", url, "all", change(func(r *metadata.Record) { r.Agent += "#1" }), nil, 400, "wrong_agent"},
		{"rank is no number", "PUT", base + "/prefill-0/ranks/0/0/x", "all", metadatatest.Marshal(t, rec), nil, 404, "not_found"},
		{"rank with a sign", "PUT", base + "/prefill-0/ranks/0/0/+1", "all", metadatatest.Marshal(t, rec), nil, 404, "not_found"},
		{"name that cannot be", "GET", base + "/a%20b", "all", nil, nil, 404, "not_found"},
		{"lives for ever", "PUT", url, "all", change(func(r *metadata.Record) { r.Expires = r.Published.Add(time.Hour) }), nil, 400, "bad_record"},
		{"lives not at all", "PUT", url, "all", change(func(r *metadata.Record) { r.Expires = r.Published }), nil, 400, "bad_record"},
		{"of next week", "PUT", url, "all", metadatatest.Marshal(t, metadatatest.Later(rec, 7*24*time.Hour)), nil, 400, "clock"},
		{"generation of next year", "PUT", url, "all", change(func(r *metadata.Record) { r.Generation = uint64(now.AddDate(1, 0, 0).UnixNano()) }), nil, 400, "clock"},
		{"of last week", "PUT", url, "all", metadatatest.Marshal(t, metadatatest.Later(rec, -7*24*time.Hour)), nil, 409, "stale"},
		{"signed by a stranger", "PUT", url, "all", metadatatest.Marshal(t, foreign), nil, 403, refusal.Insufficient},
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
		got := routestest.Send(t, c.method, c.url, c.token, c.body, c.header...)
		routestest.WantError(t, c.name, got, c.status, c.reason)
		if (got.Status == 401) != (got.Header.Get("WWW-Authenticate") != "") && got.Status != 403 {
			t.Errorf("%s: WWW-Authenticate is %q", c.name, got.Header.Get("WWW-Authenticate"))
		}
	}
	if names, err := s.List(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("the store holds %v, %v; want nothing", names, err)
	}
}

func TestFault39StaleOverTheRoutes(t *testing.T) {
	s := store.NewMemory()
	url := routestest.Serve(t, s, metadatatest.NewVoucher("gateway"), routestest.Tokens{}) + "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	if got := routestest.Send(t, "PUT", url, "all", metadatatest.Marshal(t, rec)); got.Status != http.StatusNoContent {
		t.Fatalf("got %d %s; want 204", got.Status, got.Body)
	}
	before, err := s.Engine(t.Context(), "prefill-0")
	if err != nil {
		t.Fatal(err)
	}
	older := metadatatest.Record("prefill-0", 6, 1, 0)
	routestest.WantError(t, "replay", routestest.Send(t, "PUT", url, "all", metadatatest.Marshal(t, rec)), 409, "stale")
	routestest.WantError(t, "older", routestest.Send(t, "PUT", url, "all", metadatatest.Marshal(t, metadatatest.Later(rec, -time.Second))), 409, "stale")
	routestest.WantError(t, "older generation", routestest.Send(t, "PUT", url, "all", metadatatest.Marshal(t, metadatatest.Later(older, time.Second))), 409, "stale")
	routestest.WantError(t, "delete of an older generation", routestest.Send(t, "DELETE", url+"?generation=6", "all", nil), 409, "stale")
	after, err := s.Engine(t.Context(), "prefill-0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the store changed (-before +after):\n%s", diff)
	}
}

func TestFault41ReadersSeeOnlyTheirs(t *testing.T) {
	s := store.NewMemory()
	v := metadatatest.NewVoucher("gateway")
	base := routestest.Serve(t, s, v, routestest.Tokens{}) + "/metadata/v1/engines"
	for _, rec := range []metadata.Record{metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("decode-0", 7, 1, 0)} {
		if got := routestest.Send(t, "PUT", base+"/"+rec.Engine+"/ranks/0/0/0", "write:"+rec.Engine, metadatatest.Marshal(t, rec)); got.Status != http.StatusNoContent {
			t.Fatalf("got %d %s; want 204", got.Status, got.Body)
		}
	}
	for _, path := range []string{"/prefill-0", "/prefill-0/ranks/0/0/0"} {
		for _, accept := range []string{metadata.ContentType, "application/json"} {
			got := routestest.Send(t, "GET", base+path, "read:decode", nil, "Accept", accept)
			routestest.WantError(t, path, got, 403, refusal.Insufficient)
			if bytes.Contains(got.Body, []byte{1, 2, 3}) || bytes.Contains(got.Body, []byte("AQID")) {
				t.Errorf("%s: the blob is in the answer", path)
			}
		}
	}
	if got := routestest.Send(t, "GET", base+"/prefill-0", "read:prefill", nil, "Accept", "application/json"); got.Status != 200 || !bytes.Contains(got.Body, []byte(`"engine":"prefill-0"`)) {
		t.Errorf("JSON view: got %d %s", got.Status, got.Body)
	}
	var list struct{ Engines []metadata.Listed }
	if got := routestest.Send(t, "GET", base, "read:decode", nil); json.Unmarshal(got.Body, &list) != nil || len(list.Engines) != 1 || list.Engines[0].Engine != "decode-0" || list.Engines[0].Ranks != 1 {
		t.Errorf("list: got %s; want decode-0 alone", got.Body)
	}
}

// Whatever happens in the store, the caller gets a status that says whether to try again.
func TestHandlerStoreDown(t *testing.T) {
	s := &metadatatest.FailingStore{Memory: store.NewMemory(), Down: errors.New("secret address refused")}
	base := routestest.Serve(t, s, nil, routestest.Tokens{}) + "/metadata/v1/engines"
	routestest.WantError(t, "read", routestest.Send(t, "GET", base+"/prefill-0", "all", nil), 503, "store_unavailable")
}
