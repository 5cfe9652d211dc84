package router_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestHeaderNamesInAnyCase sends requests on one connection whose field names are written in other cases than ours: each is read, and
// the answers' names are the usual ones.
func TestHeaderNamesInAnyCase(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	conn := g.Dial(t)
	defer conn.Close()
	r := bufio.NewReader(conn)
	for i, name := range []string{"x-request-id", "X-REQUEST-ID", "X-Request-Id", "x-Request-iD"} {
		id := fmt.Sprintf("mine-%d", i)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n%s: %s\r\ncontent-length: %d\r\n\r\n%s",
			routertest.PathCompletions, name, id, len(routertest.PlainBody), routertest.PlainBody)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || resp.Header.Get("X-Request-Id") != id || resp.Header.Get("X-Pdrouter-Reason") == "" {
			t.Errorf("%s: status %d, header %v, body %s; want 200 and id %s", name, resp.StatusCode, resp.Header, body, id)
		}
	}
}
