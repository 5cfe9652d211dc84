package router_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestFault66Shutdown ends the router with streams under way: those that can finish do, the others are cut with an
// error event.
func TestFault66Shutdown(t *testing.T) {
	for _, row := range []struct {
		name  string
		slow  int // milliseconds between two tokens
		drain time.Duration
		whole bool
	}{
		{"within the drain time", 50, 30 * time.Second, true},
		{"not within the drain time", 60_000, 200 * time.Millisecond, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
			s.Config.Timeouts.Drain = row.drain
			g := routertest.Start(t, s.Config, router.Parts{})
			ctx, cancel := context.WithTimeout(context.Background(), routertest.Patience)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+routertest.PathCompletions, strings.NewReader(routertest.StreamBody))
			req.Header.Set("Content-Type", "application/json")
			s.Decode[0].Faults = []routertest.Fault{{Do: routertest.DoLateToken, N: row.slow}}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first := make([]byte, 10)
			if _, err := io.ReadFull(resp.Body, first); err != nil {
				t.Fatal(err)
			}
			stopped := make(chan struct{})
			go func() { g.Stop(); close(stopped) }()
			routertest.Eventually(t, "the router is not ready", func() bool { return !g.Router.Stats().Ready })
			rest, err := io.ReadAll(resp.Body)
			<-stopped
			body := string(first) + string(rest)
			if row.whole && (err != nil || !strings.HasSuffix(body, "data: [DONE]\n\n")) {
				t.Errorf("end %v, body %q", err, body)
			}
			if !row.whole && (err == nil || strings.Contains(body, "[DONE]") || !strings.Contains(body, `{"error"`)) {
				t.Errorf("end %v, body %q", err, body)
			}
		})
	}
}

// TestFault66ShutdownWaitsForNoSilentConnection has clients that have opened connections and sent nothing.
func TestFault66ShutdownWaitsForNoSilentConnection(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Timeouts.Drain, s.Config.Timeouts.Read = time.Hour, time.Hour
	g := routertest.Start(t, s.Config, router.Parts{})
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	conn, err := net.Dial("tcp", g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 { // by now the silent one is accepted
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	stopped := make(chan struct{})
	go func() { g.Stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(routertest.Patience):
		t.Fatal("a connection that brought nothing holds up the end")
	}
	_ = conn.SetReadDeadline(time.Now().Add(routertest.Patience))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v; want the end of the connection", n, err)
	}
}
