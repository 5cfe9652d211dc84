package redisdb

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"pdrouter/internal/redistest"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestRedisCredentials(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "secret")
	for _, c := range []struct {
		password string
		ok       bool
	}{{"secret\n", true}, {"other", false}} {
		file := writeTemp(t, c.password)
		s, err := Open(Config{Address: server.Address(), Username: "default", PasswordFile: file}, quiet())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(context.Background()).Err(); (err == nil) != c.ok {
			t.Errorf("password %q: got %v; want accepted: %t", c.password, err, c.ok)
		}
		s.Close()
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no address":      {},
		"no port":         {Address: "redis"},
		"relative socket": {Address: "unix://s"},
		"braces":          {Address: "redis:6379", Prefix: "{x}"},
		"negative time":   {Address: "redis:6379", Timeout: -1},
		"CA without TLS":  {Address: "redis:6379", CAFile: "x"},
		"half a key pair": {Address: "redis:6379", TLS: true, CertFile: "x"},
		"no password":     {Address: "redis:6379", PasswordFile: "/nonexistent"},
		"no CA":           {Address: "redis:6379", TLS: true, CAFile: "/nonexistent"},
	} {
		if s, err := Open(cfg, quiet()); err == nil {
			s.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

func writeTemp(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
