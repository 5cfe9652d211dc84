package routes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// fakeCounted counts the reads of engines.
type fakeCounted struct {
	*store.Memory
	reads int
}

func (f *fakeCounted) Engine(ctx context.Context, engine string) ([]metadata.Record, error) {
	f.reads++
	return f.Memory.Engine(ctx, engine)
}

// sized returns the record of one rank of an engine of two stages of tp ranks, with four layers.
func sized(engine string, tp int, rank metadata.Rank) metadata.Record {
	r := metadatatest.Record(engine, 7, tp, rank.TP)
	r.Size.PP, r.Rank = 2, rank
	r.Agent = r.ID() + "/" + rank.String()
	r.Layout.Regions = []metadata.Region{metadatatest.Region(2 * rank.PP), metadatatest.Region(2*rank.PP + 1)}
	return r
}

func putEngine(t *testing.T, s metadata.Store, engine string, tp int, change func(*metadata.Record)) {
	t.Helper()
	for pp := range 2 {
		for rank := range tp {
			r := sized(engine, tp, metadata.Rank{PP: pp, TP: rank})
			if change != nil {
				change(&r)
			}
			metadatatest.Put(t, s, r, nil)
		}
	}
}

// TestFault41OnlyWhoMayPair: an engine's agents read the ranks that theirs exchange blocks with, and nothing else.
func TestFault41OnlyWhoMayPair(t *testing.T) {
	s := &fakeCounted{Memory: store.NewMemory()}
	base := routestest.Serve(t, s, nil, routestest.Callers{
		"decode-0":   {Engine: "decode-0", Role: metadata.Decode},
		"rank 1":     {Engine: "decode-0", Role: metadata.Decode, Ranks: []metadata.Rank{{PP: 1, TP: 1}}, Size: metadata.Rank{DP: 1, PP: 2, TP: 2}},
		"rank of 4":  {Engine: "decode-0", Role: metadata.Decode, Ranks: []metadata.Rank{{PP: 1, TP: 1}}, Size: metadata.Rank{DP: 1, PP: 2, TP: 4}},
		"other":      {Engine: "decode-other", Role: metadata.Decode},
		"half":       {Engine: "decode-half", Role: metadata.Decode},
		"none":       {Engine: "decode-none", Role: metadata.Decode},
		"named":      {Engine: "decode-other", Role: metadata.Decode, Reads: []string{"prefill-0"}},
		"gateway":    {},
		"prefill-0":  {Engine: "prefill-0", Role: metadata.Prefill},
		"aggregated": {Engine: "decode-alone", Role: metadata.Decode},
	}) + "/metadata/v1/engines"
	putEngine(t, s, "prefill-0", 4, nil)
	putEngine(t, s, "decode-0", 2, nil)
	putEngine(t, s, "decode-other", 2, func(r *metadata.Record) { r.Compatibility = "another model" })
	putEngine(t, s, "decode-alone", 2, func(r *metadata.Record) { r.Connector = "" })
	metadatatest.Put(t, s, sized("decode-half", 2, metadata.Rank{}), nil)
	metadatatest.Put(t, s, sized("prefill-half", 2, metadata.Rank{}), nil)
	for _, c := range []struct {
		token, path string
		status      int
		ranks       []metadata.Rank // that are in the answer
	}{
		{"decode-0", "/prefill-0", 200, []metadata.Rank{{TP: 0}, {TP: 1}, {TP: 2}, {TP: 3}, {PP: 1}, {PP: 1, TP: 1}, {PP: 1, TP: 2}, {PP: 1, TP: 3}}},
		{"decode-0", "/decode-0", 200, []metadata.Rank{{TP: 0}, {TP: 1}, {PP: 1}, {PP: 1, TP: 1}}},
		{"decode-0", "/prefill-half", 404, nil},
		{"decode-0", "/prefill-9", 404, nil},
		{"decode-0", "/decode-other", 403, nil},
		{"rank 1", "/prefill-0", 200, []metadata.Rank{{PP: 1, TP: 2}, {PP: 1, TP: 3}}},
		{"rank 1", "/prefill-0/ranks/0/1/2", 200, []metadata.Rank{{PP: 1, TP: 2}}},
		{"rank 1", "/prefill-0/ranks/0/1/1", 403, nil},
		{"rank 1", "/prefill-0/ranks/0/0/2", 403, nil},
		{"rank 1", "/prefill-0/ranks/0/1/4", 403, nil}, // there or not
		{"decode-0", "/prefill-0/ranks/0/1/4", 404, nil},
		{"rank of 4", "/prefill-0", 404, nil}, // its engine has published another size than its token says
		{"other", "/prefill-0", 403, nil},
		{"other", "/prefill-0/ranks/0/0/0", 403, nil},
		{"half", "/prefill-0", 404, nil},
		{"none", "/prefill-0", 404, nil},
		{"aggregated", "/prefill-0", 403, nil},
		{"named", "/prefill-0/ranks/0/0/0", 200, []metadata.Rank{{}}},
		{"gateway", "/prefill-half/ranks/0/0/0", 200, []metadata.Rank{{}}},
		{"prefill-0", "/decode-0/ranks/0/0/1", 200, []metadata.Rank{{TP: 1}}},
		{"prefill-0", "/decode-other/ranks/0/0/1", 403, nil},
	} {
		name := c.token + " reads " + c.path
		s.reads = 0
		got := routestest.Send(t, "GET", base+c.path, c.token, nil, "Accept", metadata.ContentType)
		if c.status != 200 {
			routestest.WantError(t, name, got, c.status, map[int]string{403: refusal.Insufficient, 404: "not_found"}[c.status])
			if bytes.Contains(got.Body, []byte{1, 2, 3}) || bytes.Contains(got.Body, []byte("AQID")) {
				t.Errorf("%s: the blob is in the answer", name)
			}
			continue
		}
		encoded := []msgpack.RawMessage{got.Body}
		if !strings.Contains(c.path, "/ranks/") {
			if err := msgpack.Unmarshal(got.Body, &encoded); err != nil {
				t.Fatalf("%s: %d %q: %v", name, got.Status, got.Body, err)
			}
		}
		var recs []metadata.Record
		for _, b := range encoded {
			rec, err := metadata.Unmarshal(b)
			if err != nil {
				t.Fatalf("%s: %d %q: %v", name, got.Status, got.Body, err)
			}
			recs = append(recs, rec)
		}
		if len(recs) != len(c.ranks) {
			t.Errorf("%s: got %d records; want %v", name, len(recs), c.ranks)
			continue
		}
		for i, r := range recs {
			if r.Rank != c.ranks[i] {
				t.Errorf("%s: got rank %v; want %v", name, r.Rank, c.ranks[i])
			}
		}
		if s.reads > 2 {
			t.Errorf("%s: %d reads of the store; want the engine's and the caller's own", name, s.reads)
		}
	}
}

// A list names what may be read, and nothing else.
func TestFault41ListNamesOnlyWhoMayPair(t *testing.T) {
	s := store.NewMemory()
	base := routestest.Serve(t, s, nil, routestest.Callers{"decode-0": {Engine: "decode-0", Role: metadata.Decode}, "gateway": {}}) + "/metadata/v1/engines"
	putEngine(t, s, "prefill-0", 4, nil)
	putEngine(t, s, "decode-0", 2, nil)
	putEngine(t, s, "prefill-other", 2, func(r *metadata.Record) { r.Compatibility = "another model" })
	metadatatest.Put(t, s, sized("prefill-half", 2, metadata.Rank{}), nil)
	for token, want := range map[string]string{"decode-0": "decode-0 prefill-0", "gateway": "decode-0 prefill-0 prefill-half prefill-other"} {
		var list struct{ Engines []metadata.Listed }
		if got := routestest.Send(t, "GET", base, token, nil); json.Unmarshal(got.Body, &list) != nil {
			t.Fatalf("%s: got %d %s", token, got.Status, got.Body)
		}
		var names []string
		for _, e := range list.Engines {
			names = append(names, e.Engine)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s sees %q; want %q", token, got, want)
		}
	}
}

// TestFault41OneAuditLine: every refusal is told the same to the caller, and is one line in the log, which says who and
// why, and has neither the token nor a blob.
func TestFault41OneAuditLine(t *testing.T) {
	var log bytes.Buffer
	s := store.NewMemory()
	own := metadatatest.AgentKey("prefill-0")
	v := metadatatest.NewVoucher("gateway")
	callers := routestest.Callers{
		"secret-1": {Subject: "alice", Engine: "decode-other", Role: metadata.Decode},
		"secret-2": {Subject: "bob", Engine: "prefill-0", Role: metadata.Prefill, Key: metadatatest.Public(own)},
		"secret-4": {Subject: "dora", Engine: "prefill-0", Role: metadata.Prefill},
		"secret-3": {Subject: "carol", Engine: "decode-0", Role: metadata.Decode, Ranks: []metadata.Rank{{}}},
	}
	parts := routestest.Parts(s, v, routes.AuthorizerFunc(func(r *http.Request, a routes.Access) (routes.Caller, error) {
		c, err := callers.Authorize(r, a)
		var no routestest.Refusal
		if errors.As(err, &no) && no == http.StatusForbidden {
			return c, fakeForbidden{c.Subject, a.Apart}
		}
		return c, err
	}))
	parts.Log = slog.New(slog.NewJSONHandler(&log, nil))
	url := routestest.ServeParts(t, parts)
	putEngine(t, s, "prefill-0", 4, nil)
	putEngine(t, s, "decode-0", 2, nil)
	putEngine(t, s, "decode-other", 2, func(r *metadata.Record) { r.Compatibility = "another model" })
	base := url + "/metadata/v1/engines/prefill-0"
	rec := metadatatest.Marshal(t, metadatatest.Later(sized("prefill-0", 4, metadata.Rank{}), 1e9))
	turned := metadatatest.Later(sized("prefill-0", 4, metadata.Rank{}), 1e9)
	turned.Role = metadata.Decode
	other := metadatatest.Marshal(t, turned)
	signed := metadatatest.Marshal(t, metadatatest.SignAs(t, metadatatest.Later(sized("prefill-0", 4, metadata.Rank{}), 1e9), own))
	var answers []routestest.Exchange
	for _, c := range []struct {
		method, path, token string
		body                []byte
		status              int
		log                 []string
	}{
		{"GET", "/ranks/0/0/0", "secret-1", nil, 403, []string{`"subject":"alice"`, `"reason":"insufficient_scope"`, "compatibility"}},
		{"GET", "", "secret-1", nil, 403, []string{`"subject":"alice"`, `"reason":"insufficient_scope"`, "compatibility"}},
		{"GET", "/ranks/0/1/3", "secret-3", nil, 403, []string{`"subject":"carol"`, `"reason":"insufficient_scope"`, "does not map"}},
		{"PUT", "/ranks/0/0/0", "secret-3", rec, 403, []string{`"subject":"carol"`, `"reason":"insufficient_scope"`}},
		{"PUT", "/ranks/0/0/0", "secret-2", rec, 403, []string{`"subject":"bob"`, `"reason":"bad_signature"`, "bound to key " + metadatatest.KeyID(t, own), "--sign-key"}},
		{"PUT", "/ranks/0/0/0", "secret-4", signed, 403, []string{`"subject":"dora"`, `"reason":"bad_signature"`, "bound to no key (mint it with --confirm)"}},
		{"PUT", "/ranks/0/0/0", "secret-2", other, 403, []string{`"subject":"bob"`, `"reason":"wrong_role"`}},
		{"DELETE", "/ranks/0/0/0?generation=7", "secret-2", nil, 403, []string{`"subject":"bob"`, `"reason":"bad_signature"`, "withdrawal"}},
		{"PUT", "/ranks/0/0/0", "secret-9", rec, 401, []string{`"subject":""`, `"reason":"refused"`}},
		{"GET", "/ranks/0/0/0", "secret-9", nil, 401, []string{`"subject":""`, `"reason":"refused"`}},
		{"DELETE", "/ranks/0/0/0?generation=7", "", nil, 401, []string{`"subject":""`, `"reason":"refused"`}},
	} {
		log.Reset()
		name := c.method + c.path + " " + c.token
		got := routestest.Send(t, c.method, base+c.path, c.token, c.body)
		if got.Status != c.status {
			t.Errorf("%s: got %d %s; want %d", name, got.Status, got.Body, c.status)
		}
		if c.status == 403 {
			got.Header.Del("Date")
			answers = append(answers, got)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 1 {
			t.Errorf("%s: %d lines; want one:\n%s", name, len(lines), log.String())
		}
		for _, want := range append(c.log, `"level":"WARN"`, `"method":"`+c.method+`"`, `"path":"/metadata/v1/engines/prefill-0`) {
			if !strings.Contains(lines[0], want) {
				t.Errorf("%s: %q is not in the log: %s", name, want, lines[0])
			}
		}
		for _, text := range []string{string(got.Body), log.String()} {
			if strings.Contains(text, "secret-") || strings.Contains(text, "AQID") || strings.Contains(text, "\x01\x02\x03") {
				t.Errorf("%s: a token or a blob is in %s", name, text)
			}
		}
	}
	for _, a := range answers {
		if string(a.Body) != string(answers[0].Body) || !maps.EqualFunc(a.Header, answers[0].Header, slices.Equal[[]string]) {
			t.Errorf("the answers differ: %v %s and %v %s", answers[0].Header, answers[0].Body, a.Header, a.Body)
		}
	}
}

// An authorizer that says only that it refuses has the request answered with 401.
func TestRefusalWithoutAnAnswer(t *testing.T) {
	nobody := routes.AuthorizerFunc(func(*http.Request, routes.Access) (routes.Caller, error) {
		return routes.Caller{}, errors.New("secret")
	})
	url := routestest.Serve(t, store.NewMemory(), nil, nobody)
	for _, path := range []string{"/metadata/v1/engines", "/metadata/v1/engines/p", "/metadata/v1/watch", "/metadata/v1/pairs"} {
		got := routestest.Send(t, "GET", url+path, "", nil)
		routestest.WantError(t, path, got, 401, "invalid_token")
		if got.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no challenge", path)
		}
	}
}

// fakeForbidden refuses with the body that package auth gives.
type fakeForbidden struct{ subject, why string }

func (e fakeForbidden) Error() string   { return "insufficient_scope: " + e.why }
func (e fakeForbidden) HTTPStatus() int { return http.StatusForbidden }
func (e fakeForbidden) Message() string { return "these credentials do not permit this" }

func (e fakeForbidden) Challenge() string {
	return `Bearer realm="pdrouter", error="insufficient_scope"`
}

func (e fakeForbidden) Reason() string  { return "insufficient_scope" }
func (e fakeForbidden) Subject() string { return e.subject }
