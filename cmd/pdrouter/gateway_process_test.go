package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/demo"
	"pdrouter/internal/gateway"
	"pdrouter/internal/proc"
	"pdrouter/router"
)

// startGateway has a process of its own serve what a configuration says besides where to listen. It listens when this returns,
// at the address for clients, and does not outlive the test.
func startGateway(t *testing.T, config string) (p *proc.Process, clients string) {
	t.Helper()
	addresses, err := demo.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	listen := "listen: {clients: \"" + addresses[0] + "\", operations: \"" + addresses[1] + "\"}\n"
	if err := os.WriteFile(file, []byte(listen+config), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err = proc.Start(dir, "gateway", "serve", "-c", file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Cmd.Process.Kill(); <-p.Done })
	_ = dialSoon(t, addresses[0], p).Close()
	return p, addresses[0]
}

// serveFile runs a gateway in this process on the file at path, until the test and what it starts after this call have ended.
func serveFile(t *testing.T, path string) *gateway.Gateway {
	t.Helper()
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(l, slog.New(slog.DiscardHandler), gateway.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	return g
}

// readiness is what GET /ready says.
func readiness(t *testing.T, g *gateway.Gateway) router.Stats {
	t.Helper()
	resp, err := http.Get("http://" + g.Operations().String() + "/ready")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var s router.Stats
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for what must come.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// dialSoon connects as soon as the process listens.
func dialSoon(t *testing.T, address string, p *proc.Process) net.Conn {
	t.Helper()
	for range 2000 {
		if c, err := net.Dial("tcp", address); err == nil {
			return c
		}
		if ended, err := p.Ended(); ended {
			t.Fatalf("ended: %v\n%s", err, p.Tail(10))
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("never listened")
	return nil
}

// TestNoRequestMissingInTheLog ends a gateway right behind its last answer.
func TestNoRequestMissingInTheLog(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"choices":[]}`))
	}))
	defer engine.Close()
	p, address := startGateway(t, "models: [{name: m, engines: [{name: e, url: \""+engine.URL+"\"}]}]\n")
	const n = 20
	for range n {
		answer, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello"}`))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s\n%s", answer.Status, p.Tail(10))
		}
	}
	if err := p.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	if got := bytes.Count(log, []byte(`"msg":"request"`)); got != n {
		t.Errorf("the log has %d of %d requests:\n%s", got, n, log)
	}
	if !bytes.HasSuffix(log, []byte(`"msg":"stopped"}`+"\n")) {
		t.Errorf("the log ends in %s", p.Tail(1))
	}
}
