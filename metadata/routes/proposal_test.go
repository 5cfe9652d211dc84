package routes_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// serveConnectors returns the address of the routes over an engine of 2 dp × 2 pp × 2 tp ranks, one without a connector, and one
// that the token of engine p0 may not read.
func serveConnectors(t *testing.T) string {
	t.Helper()
	s := store.NewMemory()
	for dp := range 2 {
		for pp := range 2 {
			for tp := range 2 {
				rec := metadatatest.Record("p0", 7, 2, tp)
				rec.Rank, rec.Size = metadata.Rank{DP: dp, PP: pp, TP: tp}, metadata.Rank{DP: 2, PP: 2, TP: 2}
				rec.Agent = rec.ID() + "/" + rec.Rank.String()
				metadatatest.Put(t, s, rec, nil)
			}
		}
	}
	plain := metadatatest.Record("d0", 7, 1, 0)
	plain.Connector, plain.Agent, plain.Transport, plain.Blob = "", "", "", nil
	metadatatest.Put(t, s, plain, nil)
	metadatatest.Put(t, s, metadatatest.Record("p1", 7, 1, 0), nil)
	who := routes.AuthorizerFunc(func(r *http.Request, a routes.Access) (routes.Caller, error) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case token == "":
			return routes.Caller{}, routestest.Refusal(http.StatusUnauthorized)
		case token == "person":
			return routes.Caller{Subject: "person"}, nil
		case a.Action == routes.Read && a.Engine == "p1" && token != "p1":
			return routes.Caller{}, routestest.Refusal(http.StatusForbidden)
		}
		return routes.Caller{Engine: token, Reads: []string{"d0"}}, nil
	})
	return routestest.Serve(t, s, nil, who) + "/get_kv_connector_metadata"
}

func TestConnectorMetadataNamesEveryRank(t *testing.T) {
	url := serveConnectors(t)
	for _, c := range []struct {
		query string
		pp    int
	}{{"", 0}, {"?engine=p0", 0}, {"?engine=p0&pp=1", 1}} {
		var all map[int]map[int]routes.ConnectorEntry
		got := routestest.Send(t, "GET", url+c.query, "p0", nil)
		if err := json.Unmarshal(got.Body, &all); err != nil || got.Status != 200 || len(all) != 2 {
			t.Fatalf("%s: got %d %s", c.query, got.Status, got.Body)
		}
		for tp, byDP := range all {
			if len(byDP) != 2 {
				t.Errorf("%s: tp %d has %d dp ranks; want 2", c.query, tp, len(byDP))
			}
			for dp, e := range byDP {
				want := metadata.Rank{DP: dp, PP: c.pp, TP: tp}
				if (metadata.Rank{DP: e.DP, PP: e.PP, TP: e.TP}) != want || e.AgentName != "p0@7/"+want.String() || e.EngineID == "" || e.PPSize != 2 {
					t.Errorf("%s: under tp %d, dp %d there is %+v", c.query, tp, dp, e)
				}
				if string(e.AgentMetadata) != "\x01\x02\x03" || e.NumBlocks != 16 || e.BlockLen != 1<<12 || len(e.BaseAddrs) != 2 || e.BaseAddrs[0] != 1<<40 {
					t.Errorf("%s: rank %v: %+v", c.query, want, e)
				}
			}
		}
		var one map[int]routes.ConnectorEntry
		got = routestest.Send(t, "GET", url+"/1"+c.query, "p0", nil)
		if err := json.Unmarshal(got.Body, &one); err != nil || len(one) != 2 || one[1].AgentName != all[1][1].AgentName {
			t.Errorf("one tp rank%s: got %s", c.query, got.Body)
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
		if got := routestest.Send(t, "GET", url+c.path, "p0", nil); got.Status != 200 || string(got.Body) != c.want {
			t.Errorf("%s: got %d %s; want %s", c.path, got.Status, got.Body, c.want)
		}
	}
	routestest.WantError(t, "no token", routestest.Send(t, "GET", url, "", nil), 401, "refused")
	routestest.WantError(t, "not to be read", routestest.Send(t, "GET", url+"?engine=p1", "p0", nil), 403, refusal.Insufficient)
	routestest.WantError(t, "no engine", routestest.Send(t, "GET", url, "person", nil), 400, "engine")
	for _, path := range []string{"/x", "/-1", "/01", "/0/0", "/"} {
		routestest.WantError(t, path, routestest.Send(t, "GET", url+path, "p0", nil), 404, "not_found")
	}
	for _, query := range []string{"?pp=x", "?pp=-1", "?pp="} {
		routestest.WantError(t, query, routestest.Send(t, "GET", url+query, "p0", nil), 400, "pp")
	}
}

// Paths that are nearly a route are none, and a route says which methods it takes.
func TestRoutesOnBadInput(t *testing.T) {
	s := store.NewMemory()
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	base := routestest.Serve(t, s, nil, routestest.Tokens{})
	for _, path := range []string{
		"/", "//", "/metadata", "/metadata/v1", "/metadata/v1/", "/metadata/v1/pairs/", "//metadata/v1/pairs", "/metadata//v1/pairs", "/metadata/v1%2Fpairs",
		"/metadata/v1/pairs/..", "/metadata/v1/./pairs", "/metadata/v2/pairs", "/metadata/v1/watch/", "/metadata/v1/watch/x", "/metadata/v1/WATCH",
		"/metadata/v1/engines/", "/metadata/v1/engines/prefill-0/", "/metadata/v1/engines//ranks/0/0/0", "/metadata/v1/engines/a%2Fb", "/metadata/v1/engines/%2e%2e",
		"/metadata/v1/engines/" + strings.Repeat("x", 1000), "/metadata/v1/engines/%00", "/metadata/v1/engines/prefill-0%0a",
		"/metadata/v1/engines/prefill-0/ranks/0/0", "/metadata/v1/engines/prefill-0/ranks/0/0/0/0", "/metadata/v1/engines/prefill-0/ranks/0/0/1",
		"/metadata/v1/engines/prefill-0/ranks/0/0/99999999999999999999", "/metadata/v1/engines/prefill-0/ranks/0%2F0/0/0", "/metadata/v1/engines/prefill-0/ranks/0/0/00",
	} {
		routestest.WantError(t, path, routestest.Send(t, "GET", base+path, "all", nil), 404, "not_found")
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
			got := routestest.Send(t, method, base+path, "all", nil)
			routestest.WantError(t, method+" "+path, got, 405, "method")
			if got.Header.Get("Allow") != allow {
				t.Errorf("%s %s: allows %q; want %q", method, path, got.Header.Get("Allow"), allow)
			}
		}
		path += "?engine=prefill-0"
		get, head := routestest.Send(t, "GET", base+strings.Replace(path, "watch", "pairs", 1), "all", nil), routestest.Send(t, "HEAD", base+path, "all", nil)
		if head.Status != 200 || len(head.Body) > 0 {
			t.Errorf("HEAD %s: got %d with %d bytes", path, head.Status, len(head.Body))
		}
		if !strings.Contains(path, "watch") && head.Header.Get("Content-Length") != get.Header.Get("Content-Length") {
			t.Errorf("HEAD %s: %s bytes; GET has %s", path, head.Header.Get("Content-Length"), get.Header.Get("Content-Length"))
		}
	}
}
