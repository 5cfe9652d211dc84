package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/redistest"
)

// TestKilledGatewayLeavesNoLoad: another gateway counts what a gateway has at an engine until it is killed, and no longer than its lease after that.
func TestKilledGatewayLeavesNoLoad(t *testing.T) {
	server := redistest.Start(t)
	hold := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(engine.Close)
	var clients sync.WaitGroup
	t.Cleanup(func() { close(hold); clients.Wait() })
	config := fmt.Sprintf("models: [{name: m, engines: [{name: a, url: %q}]}]\nmetadata: {store: redis, redis: {address: %q}}\n", engine.URL, server.Address())
	killed, at := startGateway(t, config)
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\n"+config), 0o600); err != nil {
		t.Fatal(err)
	}
	g := serveFile(t, file)
	for range 3 {
		clients.Go(func() {
			resp, err := http.Post("http://"+at+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
			if err == nil { // else the gateway was killed, as is meant
				resp.Body.Close()
			}
		})
	}
	until(t, "the other gateway counts its requests", func() bool { return readiness(t, g).Engines[0].Others == 3 })
	if err := killed.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, "they are forgotten", func() bool { return readiness(t, g).Engines[0].Others == 0 })
}
