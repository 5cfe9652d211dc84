package router

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestKeysOfMessages shows credentials as X-Api-Key, in raw HTTP: on the routes of that API, and never together with others.
func TestKeysOfMessages(t *testing.T) {
	e := newFakeAny(t, jsonAnswer(200, `{"id":"msg_1","type":"message","role":"assistant","content":[],"input_tokens":1}`))
	g := start(t, anyFleet(e), Parts{Clients: fakeClients{}})
	ask := func(path, fields string) int {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
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
		{pathMessages, "x-api-key: good\r\n", 200},
		{"/v1/messages/count_tokens", "X-Api-Key: good\r\n", 200},
		{pathMessages, "Authorization: Bearer good\r\n", 200},
		{pathMessages, "Authorization: Bearer good\r\nX-Api-Key: good\r\n", 200},
		{pathMessages, "Authorization: Bearer good\r\nX-Api-Key: bad\r\n", 401},
		{pathMessages, "Authorization: Bearer bad\r\nX-Api-Key: good\r\n", 401},
		{pathMessages, "X-Api-Key: good\r\nX-Api-Key: good\r\n", 401},
		{pathMessages, "Authorization: Bearer good\r\nAuthorization: Bearer good\r\n", 401},
		{pathMessages, "X-Api-Key: bad\r\n", 401},
		{pathMessages, "X-Api-Key:\r\n", 401},
		{pathMessages, "", 401},
		{pathChat, "X-Api-Key: good\r\n", 401},
		{"/v1/embeddings", "X-Api-Key: good\r\n", 401},
	} {
		if got := ask(row.path, row.fields); got != row.want {
			t.Errorf("%s %q: status %d; want %d", row.path, row.fields, got, row.want)
		}
	}
	asked := e.all()
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
