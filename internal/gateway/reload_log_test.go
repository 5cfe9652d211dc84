package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReloadOfTheSameFile logs that nothing has changed as an empty list.
func TestReloadOfTheSameFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pdrouter.yml")
	if err := os.WriteFile(path, []byte("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: m, engines: [{name: e, url: \"http://127.0.0.1:1\"}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Load(t, path)
	var log bytes.Buffer
	g, err := New(l, slog.New(slog.NewJSONHandler(&log, nil)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.controller.run(ctx) }()
	changed, err := g.controller.reload(ctx)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err != nil || changed == nil || len(changed) > 0 {
		t.Errorf("changed %#v, error %v; want an empty list", changed, err)
	}
	if !strings.Contains(log.String(), `"changed":[]`) {
		t.Errorf("logged %s", &log)
	}
}
