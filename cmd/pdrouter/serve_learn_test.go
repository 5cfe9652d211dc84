package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
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
	if !l.Routing.Costs("tiny") || strings.Contains(text, "roles") {
		t.Errorf("the policy is not cost in\n%s", text)
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

func TestServeFlagsExclude(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--prefill", "http://a"}, {"serve", "--decode", "http://a"},
		{"serve", "--prefill", "http://a", "--decode", "http://b", "--engine", "http://c"},
		{"serve", "-c", "x", "--engine", "http://c"},
		{"serve", "-c", "x", "--policy", "roles"}, {"serve", "--engine", "http://c", "--policy", "prefix"},
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
