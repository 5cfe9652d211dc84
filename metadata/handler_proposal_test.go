package metadata

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"pdrouter/internal/refusal"
	"strings"
	"testing"
)

// serveConnectors returns the address of the routes over an engine of 2 dp × 2 pp × 2 tp ranks, one without a connector, and one
// that the token of engine p0 may not read.
func serveConnectors(t *testing.T) string {
	t.Helper()
	s := NewMemory()
	for dp := range 2 {
		for pp := range 2 {
			for tp := range 2 {
				rec := record("p0", 7, 2, tp)
				rec.Rank, rec.Size = Rank{dp, pp, tp}, Rank{2, 2, 2}
				rec.Agent = rec.ID() + "/" + rec.Rank.String()
				put(t, s, rec, nil)
			}
		}
	}
	plain := record("d0", 7, 1, 0)
	plain.Connector, plain.Agent, plain.Transport, plain.Blob = "", "", "", nil
	put(t, s, plain, nil)
	put(t, s, record("p1", 7, 1, 0), nil)
	who := AuthorizerFunc(func(r *http.Request, a Access) (Caller, error) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case token == "":
			return Caller{}, fakeRefusal{http.StatusUnauthorized}
		case token == "person":
			return Caller{Subject: "person"}, nil
		case a.Action == Read && a.Engine == "p1" && token != "p1":
			return Caller{}, fakeRefusal{http.StatusForbidden}
		}
		return Caller{Engine: token, Reads: []string{"d0"}}, nil
	})
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Authorizer: who, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL + "/get_kv_connector_metadata"
}

func TestConnectorMetadataNamesEveryRank(t *testing.T) {
	url := serveConnectors(t)
	for _, c := range []struct {
		query string
		pp    int
	}{{"", 0}, {"?engine=p0", 0}, {"?engine=p0&pp=1", 1}} {
		var all map[int]map[int]connectorEntry
		got := send(t, "GET", url+c.query, "p0", nil)
		if err := json.Unmarshal(got.body, &all); err != nil || got.status != 200 || len(all) != 2 {
			t.Fatalf("%s: got %d %s", c.query, got.status, got.body)
		}
		for tp, byDP := range all {
			if len(byDP) != 2 {
				t.Errorf("%s: tp %d has %d dp ranks; want 2", c.query, tp, len(byDP))
			}
			for dp, e := range byDP {
				want := Rank{dp, c.pp, tp}
				if (Rank{e.DP, e.PP, e.TP}) != want || e.AgentName != "p0@7/"+want.String() || e.EngineID == "" || e.PPSize != 2 {
					t.Errorf("%s: under tp %d, dp %d there is %+v", c.query, tp, dp, e)
				}
				if string(e.AgentMetadata) != "\x01\x02\x03" || e.NumBlocks != 16 || e.BlockLen != 1<<12 || len(e.BaseAddrs) != 2 || e.BaseAddrs[0] != 1<<40 {
					t.Errorf("%s: rank %v: %+v", c.query, want, e)
				}
			}
		}
		var one map[int]connectorEntry
		got = send(t, "GET", url+"/1"+c.query, "p0", nil)
		if err := json.Unmarshal(got.body, &one); err != nil || len(one) != 2 || one[1].AgentName != all[1][1].AgentName {
			t.Errorf("one tp rank%s: got %s", c.query, got.body)
		}
	}
}

func TestConnectorMetadataOfWhatIsNotThere(t *testing.T) {
	url := serveConnectors(t)
	for _, c := range []struct{ path, want string }{
		{"?engine=unknown", "null"},
		{"/0?engine=unknown", "null"},
		{"?engine=a%2Fb", "null"},
		{"?engine=d0", "null"}, // serves without handing off
		{"/0?engine=d0", "null"},
		{"/9", "{}"},
		{"?pp=9", "{}"},
	} {
		if got := send(t, "GET", url+c.path, "p0", nil); got.status != 200 || string(got.body) != c.want {
			t.Errorf("%s: got %d %s; want %s", c.path, got.status, got.body, c.want)
		}
	}
	wantError(t, "no token", send(t, "GET", url, "", nil), 401, "refused")
	wantError(t, "not to be read", send(t, "GET", url+"?engine=p1", "p0", nil), 403, refusal.Insufficient)
	wantError(t, "no engine", send(t, "GET", url, "person", nil), 400, "engine")
	for _, path := range []string{"/x", "/-1", "/01", "/0/0", "/"} {
		wantError(t, path, send(t, "GET", url+path, "p0", nil), 404, "not_found")
	}
	for _, query := range []string{"?pp=x", "?pp=-1", "?pp="} {
		wantError(t, query, send(t, "GET", url+query, "p0", nil), 400, "pp")
	}
}

// Paths that are nearly a route are none, and a route says which methods it takes.
func TestRoutesOnBadInput(t *testing.T) {
	s := NewMemory()
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	base := serve(t, s, nil)
	for _, path := range []string{
		"/", "//", "/metadata", "/metadata/v1", "/metadata/v1/", "/metadata/v1/pairs/", "//metadata/v1/pairs", "/metadata//v1/pairs", "/metadata/v1%2Fpairs",
		"/metadata/v1/pairs/..", "/metadata/v1/./pairs", "/metadata/v2/pairs", "/metadata/v1/watch/", "/metadata/v1/watch/x", "/metadata/v1/WATCH",
		"/metadata/v1/engines/", "/metadata/v1/engines/prefill-0/", "/metadata/v1/engines//ranks/0/0/0", "/metadata/v1/engines/a%2Fb", "/metadata/v1/engines/%2e%2e",
		"/metadata/v1/engines/" + strings.Repeat("x", 1000), "/metadata/v1/engines/%00", "/metadata/v1/engines/prefill-0%0a",
		"/metadata/v1/engines/prefill-0/ranks/0/0", "/metadata/v1/engines/prefill-0/ranks/0/0/0/0", "/metadata/v1/engines/prefill-0/ranks/0/0/1",
		"/metadata/v1/engines/prefill-0/ranks/0/0/99999999999999999999", "/metadata/v1/engines/prefill-0/ranks/0%2F0/0/0", "/metadata/v1/engines/prefill-0/ranks/0/0/00",
	} {
		wantError(t, path, send(t, "GET", base+path, "all", nil), 404, "not_found")
	}
	for path, allow := range map[string]string{
		"/metadata/v1/pairs":                         "GET, HEAD",
		"/metadata/v1/watch":                         "GET, HEAD",
		"/metadata/v1/engines":                       "GET, HEAD",
		"/metadata/v1/engines/prefill-0":             "GET, HEAD",
		"/metadata/v1/engines/prefill-0/ranks/0/0/0": "DELETE, GET, HEAD, PUT",
		"/get_kv_connector_metadata":                 "GET, HEAD",
		"/get_kv_connector_metadata/0":               "GET, HEAD",
	} {
		for _, method := range []string{"POST", "PATCH", "OPTIONS", "TRACE"} {
			got := send(t, method, base+path, "all", nil)
			wantError(t, method+" "+path, got, 405, "method")
			if got.header.Get("Allow") != allow {
				t.Errorf("%s %s: allows %q; want %q", method, path, got.header.Get("Allow"), allow)
			}
		}
		path += "?engine=prefill-0"
		get, head := send(t, "GET", base+strings.Replace(path, "watch", "pairs", 1), "all", nil), send(t, "HEAD", base+path, "all", nil)
		if head.status != 200 || len(head.body) > 0 {
			t.Errorf("HEAD %s: got %d with %d bytes", path, head.status, len(head.body))
		}
		if !strings.Contains(path, "watch") && head.header.Get("Content-Length") != get.header.Get("Content-Length") {
			t.Errorf("HEAD %s: %s bytes; GET has %s", path, head.header.Get("Content-Length"), get.header.Get("Content-Length"))
		}
	}
}
