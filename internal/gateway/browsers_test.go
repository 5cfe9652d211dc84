package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/gateway"
)

// askRaw sends a request without a body over a connection of its own, and returns the status and the reason.
func askRaw(t *testing.T, address, head string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s\r\n\r\n", strings.ReplaceAll(strings.ReplaceAll(head, "\n", "\r\n"), "ADDRESS", address))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%s: %v", head, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("X-Pdrouter-Reason")
}

// TestBrowsersAtTheOperationsListener has browsers ask the operations listener for foreign pages, without auth.admins.
func TestBrowsersAtTheOperationsListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pdrouter.yaml")
	c := gateway.Changeable{T: t, Path: path}
	c.Write("listen: {clients: '127.0.0.1:0', operations: '127.0.0.1:0'}\nmodels: [{name: m, engines: [{name: e, url: 'http://127.0.0.1:9'}]}]\n")
	g := gateway.ServeFile(t, path)
	at := g.Operations().String()
	_, port, _ := net.SplitHostPort(at)
	const reload, metrics = "POST /config/reload HTTP/1.1\nContent-Length: 0", "GET /metrics HTTP/1.1"
	for _, row := range []struct {
		name, head string
		status     int
		reason     string
	}{
		{"curl reloads", reload + "\nHost: ADDRESS", 200, ""},
		{"the page of the listener itself reloads", reload + "\nHost: ADDRESS\nOrigin: http://ADDRESS\nSec-Fetch-Site: same-origin", 200, ""},
		{"a foreign page reloads", reload + "\nHost: ADDRESS\nOrigin: https://evil.example", 403, "cross_origin"},
		{"a foreign page reloads, new browser", reload + "\nHost: ADDRESS\nSec-Fetch-Site: cross-site", 403, "cross_origin"},
		{"a page of another port reloads", reload + "\nHost: ADDRESS\nOrigin: http://127.0.0.1:1", 403, "cross_origin"},
		{"a page without an origin reloads", reload + "\nHost: ADDRESS\nOrigin: null", 403, "cross_origin"},
		{"a rebound name reloads", reload + "\nHost: evil.example:" + port + "\nOrigin: http://evil.example:" + port, 403, "host"},
		{"a rebound name reads", metrics + "\nHost: evil.example:" + port, 403, "host"},
		{"a rebound name asks for readiness", "GET /ready HTTP/1.1\nHost: evil.example", 403, "host"},
		{"a name that begins as an address reads", metrics + "\nHost: 127.0.0.1.evil.example", 403, "host"},
		{"localhost reads", metrics + "\nHost: localhost:" + port, 200, ""},
		{"an IPv6 address reads", metrics + "\nHost: [::1]:" + port, 200, ""},
		{"an address without a port reads", metrics + "\nHost: 127.0.0.1", 200, ""},
		{"a probe of HTTP/1.0 without Host", "GET /health HTTP/1.0", 200, ""},
	} {
		if status, reason := askRaw(t, at, row.head); status != row.status || reason != row.reason {
			t.Errorf("%s: got %d %q; want %d %q", row.name, status, reason, row.status, row.reason)
		}
	}
}

// TestBrowsersAtListenersWithTokens: a token lets any Host in, and no foreign page.
func TestBrowsersAtListenersWithTokens(t *testing.T) {
	a := administer(t, "{name: m, engines: [{name: one, url: \"http://127.0.0.1:9\"}]}", "")
	for _, at := range []string{a.g.Operations().String(), a.g.Admins().String()} {
		if status, reason := askRaw(t, at, "POST /config/reload HTTP/1.1\nContent-Length: 0\nHost: ADDRESS\nOrigin: https://evil.example"); status != 403 || reason != "cross_origin" {
			t.Errorf("%s: a foreign page: %d %q", at, status, reason)
		}
		if status, reason := askRaw(t, at, "GET /metrics HTTP/1.1\nHost: pdrouter.example"); reason == "host" || status == 200 {
			t.Errorf("%s: another Host without a token: %d %q; want what anybody without a token gets", at, status, reason)
		}
	}
	if status, reason := askRaw(t, a.g.Operations().String(), "GET /health HTTP/1.1\nHost: pdrouter.example"); status != 200 {
		t.Errorf("a probe with a name as Host: %d %q", status, reason)
	}
}
