package routestest

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
)

// Gateway is the routes on a real listener, which can be stopped and started again at the same address.
type Gateway struct {
	Store   metadata.Store
	Auth    routes.Authorizer // of each request; it may be replaced
	Handler *routes.Handler
	Local   *cache.Cache
	Address string

	t      *testing.T
	cfg    routes.Config
	server *http.Server
	ended  chan struct{}
	unhear func() // ends the local copy

	mu   sync.Mutex
	seen []string // method and path of every request
}

// New starts the routes over a store until the test ends. Callers are Tokens until Auth is set.
func New(t *testing.T, cfg routes.Config, s metadata.Store) *Gateway {
	t.Helper()
	g := &Gateway{t: t, cfg: cfg, Store: s, Auth: Tokens{}, Address: "127.0.0.1:0"}
	g.Start()
	t.Cleanup(func() { g.Stop() })
	return g
}

// Start starts the gateway again.
func (g *Gateway) Start() {
	g.t.Helper()
	var err error
	g.Local, err = cache.New(g.Store, cache.Config{Settle: time.Nanosecond, Refresh: 100 * time.Millisecond, Retry: 10 * time.Millisecond}, metadatatest.Quiet())
	if err != nil {
		g.t.Fatal(err)
	}
	if g.Handler, err = routes.New(g.cfg, routes.Parts{Store: g.Store, Copy: g.Local, Authorizer: routes.AuthorizerFunc(func(r *http.Request, a routes.Access) (routes.Caller, error) { return g.Auth.Authorize(r, a) }), Log: metadatatest.Quiet()}); err != nil {
		g.t.Fatal(err)
	}
	var ln net.Listener
	metadatatest.Eventually(g.t, "the address is free", func() bool {
		ln, err = net.Listen("tcp", g.Address)
		return err == nil
	})
	g.Address = ln.Addr().String()
	handler := g.Handler
	small := func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetWriteBuffer(4 << 10) // so that it is full soon where nobody reads
		return ctx
	}
	g.server = &http.Server{ReadTimeout: 300 * time.Millisecond, ConnContext: small, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.seen = append(g.seen, r.Method+" "+r.URL.Path)
		g.mu.Unlock()
		handler.ServeHTTP(w, r)
	})}
	g.server.RegisterOnShutdown(g.Handler.Close)
	g.unhear = metadatatest.Background(g.t, g.Local.Run)
	g.ended = make(chan struct{})
	go func(s *http.Server, ended chan struct{}) {
		defer close(ended)
		_ = s.Serve(ln)
	}(g.server, g.ended)
}

// Stop ends the gateway as a shutdown does: streams at once, requests under way in peace.
func (g *Gateway) Stop() {
	g.t.Helper()
	if err := g.server.Shutdown(context.Background()); err != nil {
		g.t.Error(err)
	}
	<-g.ended
	g.unhear()
}

// URL is the base URL of the gateway.
func (g *Gateway) URL() string { return "http://" + g.Address }

// Asked returns how often something was asked of the gateway.
func (g *Gateway) Asked(what string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, s := range g.seen {
		if strings.HasPrefix(s, what) {
			n++
		}
	}
	return n
}

// Watching returns how many watches are open.
func (g *Gateway) Watching() int { return g.Handler.Watches().Open }

// Watch is a watch as curl has it.
type Watch struct {
	t    *testing.T
	Body *bufio.Reader
	End  func()
}

// OpenWatch opens a watch.
func OpenWatch(t *testing.T, url, token string) *Watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || !resp.Close {
		t.Fatalf("got %d %s; want a stream on a connection of its own", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return &Watch{t: t, Body: bufio.NewReader(resp.Body), End: cancel}
}

// next returns the next event as "kind data", or "end".
func (w *Watch) next() string {
	w.t.Helper()
	var lines []string
	for {
		line, err := w.Body.ReadString('\n')
		if err != nil {
			return "end"
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" && len(lines) > 0:
			return strings.Join(lines, " ")
		case line != "" && line[0] != ':':
			_, value, _ := strings.Cut(line, ": ")
			lines = append(lines, value)
		}
	}
}

// Want fails the test unless these are the next events: "KIND DATA" each, or "end".
func (w *Watch) Want(events ...string) {
	w.t.Helper()
	for _, want := range events {
		if got := w.next(); got != want {
			w.t.Fatalf("got %s; want %s", got, want)
		}
	}
}

// WatchPath is the path of the route.
const WatchPath = "/metadata/v1/watch"
