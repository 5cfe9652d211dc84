package routertest

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/report"
)

// Gateway is a router under test, on loopback.
type Gateway struct {
	T      testing.TB
	Router *router.Router
	Addr   string
	URL    string
	Stop   func()

	Parts router.Parts // that the router has

	Client *http.Client

	Mu        sync.Mutex
	Summaries []report.Summary
}

// Patience is how long a test waits for what must come. It is no assertion of time.
const Patience = time.Minute

// Start serves cfg until the test ends, and then checks that nothing is left behind.
func Start(t testing.TB, cfg config.Config, parts router.Parts) *Gateway {
	t.Helper()
	if n := NetOf(t); n != nil {
		return StartIn(t, n, cfg, parts)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return StartOn(t, ln, cfg, parts, http.DefaultClient, func(*router.Router) {})
}

// StartOn is Start on a listener, for clients of one kind. prepare is called before anything is served.
func StartOn(t testing.TB, ln net.Listener, cfg config.Config, parts router.Parts, client *http.Client, prepare func(*router.Router)) *Gateway {
	t.Helper()
	g := &Gateway{T: t, Client: client}
	parts.Observe = func(s report.Summary) {
		g.Mu.Lock()
		g.Summaries = append(g.Summaries, s)
		g.Mu.Unlock()
	}
	var counted tally
	counted.watch(&parts)
	if parts.Planner == nil {
		parts.Planner = Roles(t)
	}
	if parts.Log == nil {
		parts.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	g.Parts = parts
	r, err := router.New(cfg, parts)
	if err != nil {
		t.Fatal(err)
	}
	prepare(r)
	g.Router, g.Addr, g.URL = r, ln.Addr().String(), "http://"+ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Serve(ctx, ln); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	wg.Go(func() { _ = r.Run(ctx) })
	var once sync.Once
	g.Stop = func() {
		once.Do(func() {
			client.CloseIdleConnections()
			cancel()
			wg.Wait()
			r.Close()
		})
	}
	t.Cleanup(func() {
		g.WaitIdle()
		g.Stop()
		counted.tell(t)
		noGoroutines(t)
	})
	return g
}

// Roles is the policy of a gateway under test that names none: what can be split is, each role by least_load. The gateway's own default may serve
// any prompt by decode alone, and most tests are about pairs.
func Roles(t testing.TB) *policies.Policy {
	return Policy(t, policies.Choosing{})
}

// Policy is a policy by roles with one rule, for every model.
func Policy(t testing.TB, of policies.Choosing) *policies.Policy {
	t.Helper()
	of.Policy = "roles"
	p, err := policies.New(policies.Config{Default: of})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// WaitIdle waits until no request and no leg is under way.
func (g *Gateway) WaitIdle() {
	g.T.Helper()
	Eventually(g.T, "all counts are back to zero", g.Router.Debug().Idle)
}

// Eventually waits for something that must come; what names it.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

// ours are the methods whose goroutines a closed router must not leave: its own, and those of the packages that work for it.
var ours = regexp.MustCompile(`pdrouter/(router(/\w+)*|internal/(disconnect|background))\.\(\*`)

// noGoroutines waits until none runs code of the router. What tests run is in other packages.
func noGoroutines(t testing.TB) {
	t.Helper()
	buf := make([]byte, 1<<20)
	Eventually(t, "no goroutine of the router is left", func() bool {
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if ours.MatchString(g) && !strings.Contains(g, "testing.tRunner") {
				return false
			}
		}
		return true
	})
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Summary waits for the n-th summary and returns it.
func (g *Gateway) Summary(n int) report.Summary {
	g.T.Helper()
	var s report.Summary
	Eventually(g.T, "a summary", func() bool {
		g.Mu.Lock()
		defer g.Mu.Unlock()
		if len(g.Summaries) < n {
			return false
		}
		s = g.Summaries[n-1]
		return true
	})
	return s
}

// Reply is what a client saw.
type Reply struct {
	Status int
	Header http.Header
	Body   string
	Err    error // how reading the body ended, if not cleanly
}

// Post asks with a JSON body.
func (g *Gateway) Post(path, body string, header ...string) Reply {
	g.T.Helper()
	return g.send(http.MethodPost, path, strings.NewReader(body), append([]string{"Content-Type", "application/json"}, header...))
}

// Ask asks without a body.
func (g *Gateway) Ask(method, path string, header ...string) Reply {
	g.T.Helper()
	return g.send(method, path, nil, header)
}

// send asks with header fields, name and value in turn: of equal names the last counts.
func (g *Gateway) send(method, path string, body io.Reader, header []string) Reply {
	g.T.Helper()
	req, err := http.NewRequest(method, g.URL+path, body)
	if err != nil {
		g.T.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := g.Client.Do(req)
	if err != nil {
		return Reply{Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return Reply{Status: resp.StatusCode, Header: resp.Header, Body: string(b), Err: err}
}

// ErrorOf decodes an OpenAI-shaped error.
func ErrorOf(t *testing.T, body string) (e struct {
	Message string
	Type    string
	Param   *string
	Code    any
}) {
	t.Helper()
	var outer struct{ Error json.RawMessage }
	if err := json.Unmarshal([]byte(body), &outer); err != nil || outer.Error == nil {
		t.Fatalf("no error in OpenAI's shape: %q", body)
	}
	if err := json.Unmarshal(outer.Error, &e); err != nil {
		t.Fatalf("error %q: %v", body, err)
	}
	return e
}

const (
	PlainBody  = `{"model":"tiny","prompt":"one two three","max_tokens":16}`
	StreamBody = `{"model":"tiny","prompt":"one two three","max_tokens":16,"stream":true}`
	WholeText  = "tok0 tok1 tok2 "
)

// Text joins what a client got, of a stream or a whole answer, and says whether the stream was whole.
func Text(t *testing.T, r Reply) (string, bool) {
	t.Helper()
	type chunk struct {
		Choices []struct{ Text string }
		Error   any
	}
	var out strings.Builder
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		var c chunk
		if err := json.Unmarshal([]byte(r.Body), &c); err != nil || len(c.Choices) == 0 {
			t.Fatalf("status %d, body %q: %v", r.Status, r.Body, err)
		}
		return c.Choices[0].Text, r.Err == nil
	}
	done := 0
	for _, event := range strings.Split(r.Body, "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			done++
		default:
			var c chunk
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				t.Fatalf("event %q: %v", data, err)
			}
			for _, ch := range c.Choices {
				out.WriteString(ch.Text)
			}
		}
	}
	return out.String(), done == 1 && r.Err == nil
}

// Clients knows one key.
type Clients struct{ Models []string }

// Authenticate implements edge.Authenticator.
func (f Clients) Authenticate(authorization string) (auth.Principal, error) {
	if authorization != "Bearer good" {
		return auth.Principal{}, &auth.Error{Code: auth.InvalidToken}
	}
	return auth.Principal{Subject: "someone", Tenant: "team", Models: f.Models}, nil
}

// WaitWarm waits until every pair has shaken hands.
func (g *Gateway) WaitWarm() {
	g.T.Helper()
	Eventually(g.T, "every pair is known", func() bool {
		return !slices.ContainsFunc(g.Router.Stats().Pairs, func(p metadata.PairState) bool { return !p.Warm })
	})
	g.WaitIdle()
}

// WaitFollowed waits until every engine's event stream is open.
func (g *Gateway) WaitFollowed() {
	g.T.Helper()
	Eventually(g.T, "every event stream is open", func() bool {
		return !slices.ContainsFunc(g.Router.Stats().Engines, func(e router.EngineStats) bool { return !*e.Events })
	})
}

// Freed is how often blocks that a request left behind came free, by how it ended and what freed them.
func (g *Gateway) Freed(end, by string) (n uint64) {
	for _, c := range g.Router.Stats().Reclaimed {
		if c.Ending == end && c.By == by {
			n += c.Count
		}
	}
	return n
}

// Blocks are the blocks that an engine holds for nobody, by why.
func (g *Gateway) Blocks(engine string) map[string]int {
	for _, e := range g.Router.Stats().Engines {
		if e.Name == engine {
			held := map[string]int{"may_hold": e.MaybeLeaked}
			maps.Copy(held, e.Leaked)
			return held
		}
	}
	return nil
}

// EngineStats returns what Stats says of an engine.
func (g *Gateway) EngineStats(name string) router.EngineStats {
	for _, e := range g.Router.Stats().Engines {
		if e.Name == name {
			return e
		}
	}
	return router.EngineStats{}
}

// MustServe asks n times, and wants the whole answer each time.
func (g *Gateway) MustServe(n int, body string) {
	g.T.Helper()
	for range n {
		r := g.Post(PathCompletions, body)
		if r.Status != 200 || r.Err != nil {
			g.T.Fatalf("status %d, %v: %s", r.Status, r.Err, r.Body)
		}
	}
}

// Get asks without a body.
func (g *Gateway) Get(path string, header ...string) Reply {
	g.T.Helper()
	return g.Ask(http.MethodGet, path, header...)
}

// Prefixed asks with a body, and returns who computed the prompt.
func (g *Gateway) Prefixed(nth int, body string) string {
	g.T.Helper()
	if r := g.Post("/v1/chat/completions", body); r.Status != 200 {
		g.T.Fatalf("request %d: status %d: %s", nth, r.Status, r.Body)
	}
	s := g.Summary(nth)
	if s.Prefill == "" {
		return s.Decode
	}
	return s.Prefill
}

// Dial is a client's connection.
func (g *Gateway) Dial(t *testing.T) net.Conn {
	t.Helper()
	dial := new(net.Dialer).DialContext
	if n := NetOf(t); n != nil {
		dial = n.Dial
	}
	c, err := dial(t.Context(), "tcp", g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// RawPost is a POST as it stands on the wire, with these lines for its head.
func RawPost(path, body string, head ...string) string {
	lines := append([]string{"POST " + path + " HTTP/1.1"}, head...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}
