package metadata

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// gatewayUnderTest is the routes on a real listener, which can be stopped and started again at the same address.
type gatewayUnderTest struct {
	t       *testing.T
	cfg     HandlerConfig
	store   Store
	auth    Authorizer
	couples func(x, y string) bool // nil: any
	handler *Handler
	server  *http.Server
	address string
	ended   chan struct{}
	unhear  func() // ends the local copy

	mu   sync.Mutex
	seen []string // method and path of every request
}

func newGateway(t *testing.T, cfg HandlerConfig, s Store) *gatewayUnderTest {
	t.Helper()
	g := &gatewayUnderTest{t: t, cfg: cfg, store: s, auth: fakeAuthorizer{}, address: "127.0.0.1:0"}
	g.start()
	t.Cleanup(func() { g.stop() })
	return g
}

func (g *gatewayUnderTest) start() {
	g.t.Helper()
	local, err := NewCache(g.store, CacheConfig{Settle: time.Nanosecond, Refresh: 100 * time.Millisecond, Retry: 10 * time.Millisecond}, nil, quiet())
	if err != nil {
		g.t.Fatal(err)
	}
	if g.handler, err = NewHandler(g.cfg, HandlerParts{Store: g.store, Copy: local, Paired: g.couples, Authorizer: AuthorizerFunc(func(r *http.Request, a Access) (Caller, error) { return g.auth.Authorize(r, a) }), Log: quiet()}); err != nil {
		g.t.Fatal(err)
	}
	var ln net.Listener
	eventually(g.t, "the address is free", func() bool {
		ln, err = net.Listen("tcp", g.address)
		return err == nil
	})
	g.address = ln.Addr().String()
	handler := g.handler
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
	g.server.RegisterOnShutdown(g.handler.Close)
	g.unhear = running(g.t, local.Run)
	g.ended = make(chan struct{})
	go func(s *http.Server, ended chan struct{}) {
		defer close(ended)
		_ = s.Serve(ln)
	}(g.server, g.ended)
}

// stop ends the gateway as a shutdown does: streams at once, requests under way in peace.
func (g *gatewayUnderTest) stop() {
	g.t.Helper()
	if err := g.server.Shutdown(context.Background()); err != nil {
		g.t.Error(err)
	}
	<-g.ended
	g.unhear()
}

func (g *gatewayUnderTest) url() string { return "http://" + g.address }

// asked returns how often something was asked of the gateway.
func (g *gatewayUnderTest) asked(what string) int {
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

func (g *gatewayUnderTest) watching() int {
	g.handler.watches.mu.Lock()
	defer g.handler.watches.mu.Unlock()
	return len(g.handler.watches.watchers)
}

// rawWatch is a watch as curl has it.
type rawWatch struct {
	t    *testing.T
	body *bufio.Reader
	end  func()
}

func openWatch(t *testing.T, url, token string) *rawWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || !resp.Close {
		t.Fatalf("got %d %s; want a stream on a connection of its own", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return &rawWatch{t: t, body: bufio.NewReader(resp.Body), end: cancel}
}

// next returns the next event as "kind data", or "end".
func (w *rawWatch) next() string {
	w.t.Helper()
	var lines []string
	for {
		line, err := w.body.ReadString('\n')
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

func (w *rawWatch) want(events ...string) {
	w.t.Helper()
	for _, want := range events {
		if got := w.next(); got != want {
			w.t.Fatalf("got %s; want %s", got, want)
		}
	}
}

const watchPath = "/metadata/v1/watch"
