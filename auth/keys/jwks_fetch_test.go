package keys_test

import (
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/internal/authtest"
	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestJWKSFromAServerWithItsOwnAuthority(t *testing.T) {
	key := keytest.New(t, "k1")
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		says(jwksOf(t, key))(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	dir := t.TempDir()
	cfg := keys.JWKSConfig{URL: srv.URL, CAFile: filepath.Join(dir, "ca.pem"), TokenFile: filepath.Join(dir, "token")}
	if _, err := keys.NewJWKS(cfg, nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing ca_file was accepted")
	}
	keytest.Write(t, cfg.CAFile, keytest.PEM("CERTIFICATE", srv.Certificate().Raw))
	ask := func(cfg keys.JWKSConfig) error {
		j, err := keys.NewJWKS(cfg, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return j.Ask(t.Context())
	}
	if err := ask(cfg); err == nil {
		t.Error("without the token's file: answered")
	}
	keytest.Write(t, cfg.TokenFile, "secret\n")
	if err := ask(cfg); err != nil {
		t.Error(err)
	}
	cfg.CAFile = ""
	if err := ask(cfg); err == nil {
		t.Error("an unknown authority was believed")
	}
	keytest.Write(t, cfg.TokenFile, "secret\r\nX-Other: 1")
	if err := ask(cfg); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a token of two lines: got %v; want a refusal that does not quote it", err)
	}
}

func TestJWKSFromAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := keytest.New(t, "a"), keytest.New(t, "b")
		file := filepath.Join(t.TempDir(), "jwks.json")
		keytest.Write(t, file, jwksOf(t, a))
		j := keytest.RunJWKS(t, keys.JWKSConfig{URL: file}, nil)
		v := jwksVerifier(t, j)
		if _, err := v.Authenticate(authtest.Mint(t, a, auth.Grant{})); err != nil {
			t.Error(err)
		}
		keytest.Write(t, file, jwksOf(t, b))
		time.Sleep(5 * time.Minute)
		if _, err := v.Authenticate(authtest.Mint(t, b, auth.Grant{})); err != nil {
			t.Error(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := v.Authenticate(authtest.Mint(t, b, auth.Grant{})); err != nil {
			t.Errorf("without the file: %v", err)
		}
	})
}

// A server that answers for ever is read no further than a set may be long.
func TestFault37ReadsNoMoreThanASetMayHave(t *testing.T) {
	f := newFakeIssuer(t, keytest.New(t, "k1"))
	var taken atomic.Int64
	over := make(chan struct{})
	f.will(func(w http.ResponseWriter, _ *http.Request) {
		defer close(over)
		for chunk := make([]byte, 1<<10); taken.Load() < 10<<20; { // what is not read by somebody cannot be written
			n, err := w.Write(chunk)
			if taken.Add(int64(n)); err != nil {
				return
			}
		}
	})
	j, err := keys.NewJWKS(keys.JWKSConfig{URL: "https://issuer.example/keys"}, f.transport(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Ask(t.Context()); err == nil {
		t.Error("10 MiB were taken for a key set")
	}
	<-over
	if got, most := taken.Load(), int64(keys.MaxJWKS+64<<10); got > most {
		t.Errorf("%d bytes were read; want %d at most", got, most)
	}
}

// What stands behind the ? of an address may be a key to it.
func TestJWKSLogsNoQuery(t *testing.T) {
	f := newFakeIssuer(t, keytest.New(t, "k1"))
	var log strings.Builder
	j, err := keys.NewJWKS(keys.JWKSConfig{URL: "https://issuer.example/keys?code=hunter2"}, f.transport(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.will(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	j.Tell(j.Ask(t.Context()), 0)
	j.Tell(nil, 1)
	if strings.Contains(log.String(), "hunter2") || strings.Count(log.String(), "url=https://issuer.example/keys") != 3 {
		t.Errorf("want the address without its query in\n%s", log.String())
	}
	for _, url := range []string{"http://issuer.example/keys?code=hunter2", "https:///keys?code=hunter2"} {
		if err := (keys.JWKSConfig{URL: url}).Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v; want an error without the query", url, err)
		}
	}
}
