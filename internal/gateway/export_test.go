package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
)

// Issuer is who signs the tokens of these tests.
const Issuer = "pdrouter"

// Load reads a configuration file.
func Load(t *testing.T, path string) *configfile.Loaded {
	t.Helper()
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Running runs a gateway until the test and what it starts after this call have ended.
func Running(t *testing.T, g *Gateway) {
	t.Helper()
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
}

// MakeKey makes a key pair, and returns its files.
func MakeKey(t *testing.T, dir string) (key *keys.Key, private, public string) {
	t.Helper()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	if private, public, err = keys.Write(dir, key); err != nil {
		t.Fatal(err)
	}
	return key, private, public
}

// Mint makes a token that is valid for an hour.
func Mint(t *testing.T, key *keys.Key, g auth.Grant) string {
	t.Helper()
	if g.TTL = time.Hour; g.Issuer == "" {
		g.Issuer = Issuer
	}
	token, err := auth.Mint(key, g)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Until waits for what must come.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Changeable is a gateway whose file is changed under it.
type Changeable struct {
	*Gateway
	T    *testing.T
	Path string
}

// ServeFile runs a gateway on the file at path until the test ends.
func ServeFile(t *testing.T, path string) *Changeable {
	t.Helper()
	l := Load(t, path)
	g, err := New(l, slog.New(slog.NewTextHandler(t.Output(), nil)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	Running(t, g)
	return &Changeable{g, t, path}
}

// Write replaces the file in one step.
func (c *Changeable) Write(text string) {
	c.T.Helper()
	if err := os.WriteFile(c.Path+".new", []byte(text), 0o600); err != nil {
		c.T.Fatal(err)
	}
	if err := os.Rename(c.Path+".new", c.Path); err != nil {
		c.T.Fatal(err)
	}
}

// Reload asks for a reload, and returns the status and what was said.
func (c *Changeable) Reload() (status int, changed, mistakes []string) {
	c.T.Helper()
	resp, err := http.Post("http://"+c.operations.Addr().String()+"/config/reload", "", nil)
	if err != nil {
		c.T.Fatal(err)
	}
	defer resp.Body.Close()
	var said struct{ Changed, Mistakes []string }
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		c.T.Fatal(err)
	}
	return resp.StatusCode, said.Changed, said.Mistakes
}

// Models is what the gateway serves.
func (c *Changeable) Models() string {
	resp, err := http.Get("http://" + c.clients.Addr().String() + "/v1/models")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// FakeServing is an engine that says its name, and holds a request whose prompt is "hold" until it is let go.
type FakeServing struct {
	*httptest.Server
	name    string
	Served  atomic.Int64
	Held    chan struct{}
	Release chan struct{}
}

func NewFakeServing(t *testing.T, name, address string) *FakeServing {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip("SKIPPED: no such address of loopback here: ", err)
	}
	f := &FakeServing{name: name, Held: make(chan struct{}, 64), Release: make(chan struct{})}
	f.Server = &httptest.Server{Listener: ln, Config: &http.Server{Handler: f}}
	f.Start()
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

// ServeHTTP implements http.Handler.
func (f *FakeServing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		return
	}
	b, _ := io.ReadAll(r.Body)
	f.Served.Add(1)
	if strings.Contains(string(b), `"hold"`) {
		f.Held <- struct{}{}
		<-f.Release
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"x","object":"text_completion","model":"m","choices":[{"index":0,"text":%q,"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, f.name)
}

// ReloadNow reads the configuration again.
func (g *Gateway) ReloadNow(ctx context.Context) ([]string, error) { return g.controller.reload(ctx) }

// RefusedOverrides is how many shared overrides were ignored as no gateway had signed them.
func (g *Gateway) RefusedOverrides() uint64 { return g.overrides.Refused() }

// LimitsBehind reports whether the gateway counts for itself as Redis does not answer.
func (g *Gateway) LimitsBehind() bool { return g.limiter.Stats().Behind }
