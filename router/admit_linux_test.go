package router_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/limits"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// fakeConn panics when the router begins to watch it, once.
type fakeConn struct {
	net.Conn
	panicked *bool
}

func (c fakeConn) NetConn() net.Conn {
	if !*c.panicked {
		*c.panicked = true
		panic("a fault of the connection")
	}
	return c.Conn
}

// TestPanicKeepsNoSlot has the edge panic behind the admission: the request's slot comes free, and it is under way no more.
func TestPanicKeepsNoSlot(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	l := newCounted(limits.Limits{Concurrent: 1})
	g := routertest.Start(t, s.Config, router.Parts{Limiter: l})
	server, client := net.Pipe()
	defer client.Close()
	served := make(chan error, 1)
	go func() { served <- g.Router.Debug().Edge().ServeConn(fakeConn{server, new(bool)}) }()
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	go fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		routertest.PathCompletions, len(routertest.PlainBody), routertest.PlainBody)
	answer := make([]byte, 64)
	n, err := client.Read(answer)
	if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 500") {
		t.Errorf("got %q, %v; want 500", answer[:n], err)
	}
	client.Close()
	<-served
	l.ended(t, 1)
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
		t.Errorf("the next request: %d %s", r.Status, r.Body)
	}
}
