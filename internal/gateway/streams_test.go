package gateway

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/store"
)

// A watch ends as a whole answer when the gateway stops: it is told to end, not cut when the time of others is over.
func TestWatchesEndWhenTheGatewayStops(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	anybody := routes.AuthorizerFunc(func(*http.Request, routes.Access) (routes.Caller, error) { return routes.Caller{}, nil })
	s := store.NewMemory()
	local, err := cache.New(s, cache.Config{}, log)
	if err != nil {
		t.Fatal(err)
	}
	h, err := routes.New(routes.Config{}, routes.Parts{Store: s, Copy: local, Authorizer: anybody, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- httpServer(ln, h, log)(ctx) }()
	resp, err := http.Get("http://" + ln.Addr().String() + "/metadata/v1/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stop()
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(b), ": open\n\n") {
		t.Errorf("the stream was %q, %v; want it whole", b, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
