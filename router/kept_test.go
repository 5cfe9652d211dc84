package router_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestKeptConnectionOutlivesAWriteDeadline asks again on a connection whose earlier answer's write deadline is long
// over: routes that answer early must set their own.
func TestKeptConnectionOutlivesAWriteDeadline(t *testing.T) {
	e := routertest.NewEngine(t, routertest.NewCluster(false), "e")
	var refused []string
	g := routertest.Start(t, config.Config{
		Models:   []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "e", URL: e.Server.URL}}}},
		Timeouts: config.Timeouts{Write: 50 * time.Millisecond},
	}, router.Parts{Refused: func(_ int, why string) { refused = append(refused, why) }})
	conn, err := net.Dial("tcp", g.Addr) // by hand: a client library would ask again on a new connection
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, ask := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodPost, routertest.PathCompletions, `{"model":"tiny","prompt":"hello","max_tokens":2}`, 200},
		{http.MethodGet, routertest.PathModels, "", 200},
		{http.MethodPost, routertest.PathCompletions, `{"model":"other","prompt":"hello"}`, 404},
		{http.MethodGet, routertest.PathModels, "", 200},
	} {
		req, err := http.NewRequest(ask.method, g.URL+ask.path, strings.NewReader(ask.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if err := req.Write(conn); err != nil {
			t.Fatalf("%s %s: %v", ask.method, ask.path, err)
		}
		resp, err := http.ReadResponse(answers, req)
		if err != nil {
			t.Fatalf("%s %s: %v", ask.method, ask.path, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatalf("%s %s: %v", ask.method, ask.path, err)
		}
		if resp.StatusCode != ask.status {
			t.Errorf("%s %s: status %d; want %d", ask.method, ask.path, resp.StatusCode, ask.status)
		}
		time.Sleep(100 * time.Millisecond) // the deadline of that answer passes
	}
	if len(refused) != 1 || refused[0] != "unknown_model" {
		t.Errorf("refusals noted: %q; want the one of the unknown model", refused)
	}
}
