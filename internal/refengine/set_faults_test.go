package refengine

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestSetFaultsBesideRequests: faults may be set while requests come. The race detector tells.
func TestSetFaultsBesideRequests(t *testing.T) {
	e, err := New(Config{Name: "e", Model: "m", Shape: Shape{Layers: 1, Heads: 1, HeadDim: 2}, Blocks: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(t.Context())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- NewServer(e).Serve(ctx, ln, time.Second) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for range 20 {
		go e.SetFaults()
		resp, err := http.Post("http://"+ln.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a b c","max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
}
