package router_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// TestProbesOfClients asks for /health, /livez and /readyz at the clients' listener, without credentials.
func TestProbesOfClients(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{}`))
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{Clients: routertest.Clients{}})
	want := func(when string, result, ready int) {
		t.Helper()
		for path, status := range map[string]int{routertest.PathHealth: result, routertest.PathLive: result, routertest.PathReady: ready, routertest.PathHealth + "?a=b": result} {
			for _, method := range []string{"GET", "HEAD"} {
				if r := g.Ask(method, path); r.Status != status || r.Body != "" || r.Header.Get("X-Pdrouter-Reason") != "" {
					t.Errorf("%s: %s %s: status %d, header %v: %q; want %d and no body", when, method, path, r.Status, r.Header, r.Body, status)
				}
			}
		}
	}
	routertest.Eventually(t, "the engine has answered", g.Router.Ready)
	if g.Router.AskedReady() {
		t.Error("nobody has asked for /readyz")
	}
	want("serving", 200, 200)
	if !g.Router.AskedReady() {
		t.Error("/readyz was asked for")
	}
	for _, path := range []string{routertest.PathHealth, routertest.PathLive, routertest.PathReady} {
		if r := g.Post(path, "{}"); r.Status != 405 || r.Header.Get("Allow") != "GET" {
			t.Errorf("POST %s: status %d, header %v", path, r.Status, r.Header)
		}
	}
	if r := g.Ask("HEAD", routertest.PathModels); r.Status != 405 {
		t.Errorf("HEAD of another route: status %d", r.Status)
	}
	conn, err := net.Dial("tcp", g.Addr) // a probe of HTTP/1.0 without a Host
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /health HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || !strings.Contains(string(b), " 200 ") {
		t.Errorf("HTTP/1.0 without Host: %q, %v", b, err)
	}
	g.Router.Drain()
	want("draining", 200, 503)
}
