package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
)

// TestServeWithoutAFile starts the gateway with nothing but the address of a running engine.
func TestServeWithoutAFile(t *testing.T) {
	e := startEngine(t, "--model", "tiny")
	text := call(t, "serve", "--engine", e.url, "--print-config", "--listen", "127.0.0.1:0")
	l, err := configfile.Parse("", []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if m := l.Models[0]; m.Name != "tiny" || m.Connector != "none" || len(m.Engines) != 1 || m.Engines[0].URL != e.url {
		t.Errorf("learned %+v", m)
	}
	l.Listen.Operations = "127.0.0.1:0"
	g, err := gateway.New(l, slog.New(slog.DiscardHandler), gateway.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	at := "http://" + g.Clients().String()
	if status, text, err := complete(at, `{"model":"tiny","prompt":"The sea","max_tokens":4}`); status != 200 || text == "" || err != nil {
		t.Errorf("got %d %q, %v", status, text, err)
	}
	operations := "http://" + g.Operations().String()
	resp, err := http.Post(operations+"/config/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(answer), "there is no configuration file") {
		t.Errorf("a reload: %s %s", resp.Status, answer)
	}
	time.Sleep(2500 * time.Millisecond) // two looks at files, of which there are none
	if resp, err = http.Get(operations + "/metrics"); err != nil {
		t.Fatal(err)
	}
	metrics, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.Contains(string(metrics), `pdrouter_config_reloads_total{result="refused"} 1`) {
		t.Error("want one reload refused, the one that was asked for")
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServeWaitsForEngines: an engine that is still starting is waited for, and named.
func TestServeWaitsForEngines(t *testing.T) {
	asked := 0
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"data":[{"id":"tiny"}]}`))
	}))
	defer engine.Close()
	learned := &learned{engines: []string{engine.URL}, wait: time.Minute}
	var out strings.Builder
	text, err := learned.learn(t.Context(), &out)
	if err != nil || !strings.Contains(string(text), engine.URL) || strings.Count(out.String(), "waiting for "+engine.URL) != 1 {
		t.Errorf("got %s, %v; said %q", text, err, out.String())
	}
}

func TestServeGivesUpOnEngines(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc // nil: nothing listens
		want   string
	}{
		"nothing there": {nil, "not every engine has answered within"},
		"starting":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "not every engine has answered within"},
		"another thing": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, "answered 404"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if c.answer == nil {
			listener.Close()
		} else {
			server := &http.Server{Handler: c.answer}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { server.Close() })
		}
		learned := &learned{engines: []string{"http://" + listener.Addr().String()}, wait: 300 * time.Millisecond}
		var out strings.Builder
		_, err = learned.learn(t.Context(), &out)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
		if c.want == "answered 404" == strings.Contains(out.String(), "waiting for http://") {
			t.Errorf("%s: said %q", name, out.String())
		}
	}
}

func TestServeFlagsExclude(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--prefill", "http://a"}, {"serve", "--decode", "http://a"},
		{"serve", "--prefill", "http://a", "--decode", "http://b", "--engine", "http://c"},
		{"serve", "-c", "x", "--engine", "http://c"},
	} {
		if err := run(t.Context(), args, io.Discard); !errors.As(err, new(usageError)) {
			t.Errorf("%q: got %v; want a usage error", args, err)
		}
	}
}

// TestValidateProbe names what an engine does not serve.
func TestValidateProbe(t *testing.T) {
	e := startEngine(t, "--model", "tiny")
	for model, want := range map[string]string{"tiny": "", "large": `does not serve model "large": it serves "tiny"`} {
		file := t.TempDir() + "/pdrouter.yaml"
		if err := os.WriteFile(file, []byte("models: [{name: "+model+", engines: [{name: e, url: \""+e.url+"\"}]}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := run(t.Context(), []string{"validate", "--probe", file}, &out)
		switch {
		case want == "" && (err != nil || !strings.Contains(out.String(), "every engine answers and fits")):
			t.Errorf("%s: %v\n%s", model, err, out.String())
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v; want %q", model, err, want)
		}
		if strings.Contains(out.String(), "is sound") != (err == nil) {
			t.Errorf("%s: %v, and said\n%s", model, err, out.String())
		}
	}
}
