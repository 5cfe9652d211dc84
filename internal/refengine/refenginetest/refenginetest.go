// Package refenginetest runs reference engines in the process of a test.
package refenginetest

import (
	"context"
	"net"
	"testing"
	"time"

	"pdrouter/internal/refengine"
)

// Start serves an engine until the test ends, and returns its host and port.
func Start(t *testing.T, c refengine.Config) string {
	t.Helper()
	e, err := refengine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- refengine.NewServer(e).Serve(ctx, ln, 5*time.Second) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}
