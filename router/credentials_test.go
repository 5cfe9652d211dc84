package router_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// TestKeysOfMessages shows credentials as X-Api-Key, in raw HTTP: on the routes of that API, and never together with others.
func TestKeysOfMessages(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"id":"msg_1","type":"message","role":"assistant","content":[],"input_tokens":1}`))
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{Clients: routertest.Clients{}})
	ask := func(path, fields string) int {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const body = `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"a"}]}`
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nanthropic-version: 2023-06-01\r\n%sContent-Length: %d\r\n\r\n%s",
			path, fields, len(body), body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.ReadAll(resp.Body)
		return resp.StatusCode
	}
	for _, row := range []struct {
		path, fields string
		want         int
	}{
		{routertest.PathMessages, "x-api-key: good\r\n", 200},
		{"/v1/messages/count_tokens", "X-Api-Key: good\r\n", 200},
		{routertest.PathMessages, "Authorization: Bearer good\r\n", 200},
		{routertest.PathMessages, "Authorization: Bearer good\r\nX-Api-Key: good\r\n", 200},
		{routertest.PathMessages, "Authorization: Bearer good\r\nX-Api-Key: bad\r\n", 401},
		{routertest.PathMessages, "Authorization: Bearer bad\r\nX-Api-Key: good\r\n", 401},
		{routertest.PathMessages, "X-Api-Key: good\r\nX-Api-Key: good\r\n", 401},
		{routertest.PathMessages, "Authorization: Bearer good\r\nAuthorization: Bearer good\r\n", 401},
		{routertest.PathMessages, "X-Api-Key: bad\r\n", 401},
		{routertest.PathMessages, "X-Api-Key:\r\n", 401},
		{routertest.PathMessages, "", 401},
		{routertest.PathChat, "X-Api-Key: good\r\n", 401},
		{"/v1/embeddings", "X-Api-Key: good\r\n", 401},
	} {
		if got := ask(row.path, row.fields); got != row.want {
			t.Errorf("%s %q: status %d; want %d", row.path, row.fields, got, row.want)
		}
	}
	asked := e.All()
	if len(asked) != 4 {
		t.Errorf("the engine was asked %d times", len(asked))
	}
	for _, a := range asked {
		for name := range a.Header {
			if lower := strings.ToLower(name); lower == "x-api-key" || lower == "authorization" || strings.HasPrefix(lower, "anthropic-") {
				t.Errorf("the engine was sent %s", name)
			}
		}
	}
}
