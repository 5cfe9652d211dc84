package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/adminapi"
)

// TestEnginesListSteersNoTerminal has whoever changed an engine be called what moves a cursor and begins lines.
func TestEnginesListSteersNoTerminal(t *testing.T) {
	by, at := "x\x1b[2J\ndecode-3\tup", time.Now()
	var out strings.Builder
	if err := printEngines(&out, adminapi.Listing{Engines: []adminapi.Engine{{Name: "a", By: by, At: &at}}, Expired: []adminapi.Expired{{Name: "b", By: by, At: at}}}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "\x1b") || strings.Count(text, "\n") != 3 || strings.Count(text, `\n`) != 2 {
		t.Errorf("printed %q", text)
	}
}

// TestAdminClientFollowsNoRedirects has the gateway's address redirect to another server, which must not get the token.
func TestAdminClientFollowsNoRedirects(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		var reached atomic.Int32
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reached.Add(1)
			_, _ = w.Write([]byte("{}"))
		}))
		gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
		}))
		for _, args := range [][]string{{"list"}, {"drain"}, {"add"}, {"remove"}} {
			args = append(args, "--gateway", gateway.URL, "--token-file", token)
			switch args[0] {
			case "drain", "remove":
				args = append(args, "e")
			case "add":
				args = append(args, "m", "engines", "e", "http://127.0.0.1:9")
			}
			err := run(t.Context(), append([]string{"admin", "engines"}, args...), io.Discard)
			if want := fmt.Sprintf("%d: a redirect, which is not followed", status); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %s", args[0], err, want)
			}
		}
		if n := reached.Load(); n > 0 {
			t.Errorf("status %d: the other server got %d requests", status, n)
		}
		gateway.Close()
		elsewhere.Close()
	}
}

// TestMovesLeftAreTold: an engine that drains and has conversations to give away yet is told of with their number, also when it is told to drain.
func TestMovesLeftAreTold(t *testing.T) {
	const engine = `{"name":"e","state":"draining","moves_left":17}`
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"engines":[`+engine+`]}`)
			return
		}
		_, _ = io.WriteString(w, engine)
	}))
	defer gateway.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"list"}, {"drain", "e"}} {
		var out strings.Builder
		err := run(t.Context(), append(append([]string{"admin", "engines"}, args...), "--gateway", gateway.URL, "--token-file", token), &out)
		if text := out.String(); err != nil || !strings.Contains(text, "draining, ") || !strings.Contains(text, "17 moves left") {
			t.Errorf("%s: %v, printed %q", args[0], err, text)
		}
	}
}
