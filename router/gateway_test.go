package router

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
	"pdrouter/router/config"
	"pdrouter/router/report"
)

// gateway is a router under test, on loopback.
type gateway struct {
	t    testing.TB
	r    *Router
	addr string
	url  string
	stop func()

	parts Parts // that the router has

	client *http.Client

	mu        sync.Mutex
	summaries []report.Summary
}

// longEnough is how long a test waits for what must come. It is no assertion of time.
const longEnough = 20 * time.Second

// start serves cfg until the test ends, and then checks that nothing is left behind.
func start(t testing.TB, cfg config.Config, parts Parts) *gateway {
	t.Helper()
	if n := netOf(t); n != nil {
		return startIn(t, n, cfg, parts)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, ln, cfg, parts, http.DefaultClient, func(*Router) {})
}

// startOn is start on a listener, for clients of one kind. prepare is called before anything is served.
func startOn(t testing.TB, ln net.Listener, cfg config.Config, parts Parts, client *http.Client, prepare func(*Router)) *gateway {
	t.Helper()
	g := &gateway{t: t, client: client}
	parts.Observe = func(s report.Summary) {
		g.mu.Lock()
		g.summaries = append(g.summaries, s)
		g.mu.Unlock()
	}
	var counted tally
	counted.watch(&parts)
	if parts.Log == nil {
		parts.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	g.parts = parts
	r, err := New(cfg, parts)
	if err != nil {
		t.Fatal(err)
	}
	prepare(r)
	g.r, g.addr, g.url = r, ln.Addr().String(), "http://"+ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Serve(ctx, ln); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	wg.Go(func() { _ = r.Run(ctx) })
	var once sync.Once
	g.stop = func() {
		once.Do(func() {
			client.CloseIdleConnections()
			cancel()
			wg.Wait()
			r.Close()
		})
	}
	t.Cleanup(func() {
		g.settled()
		g.stop()
		counted.tell(t)
		noGoroutines(t)
	})
	return g
}

// settled waits until no request and no leg is under way.
func (g *gateway) settled() {
	g.t.Helper()
	eventually(g.t, "all counts are back to zero", g.r.Debug().Idle)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(longEnough); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

// ours are the methods whose goroutines a closed router must not leave: its own, and those of the packages that work for it.
var ours = regexp.MustCompile(`pdrouter/(router(/\w+)*|internal/(disconnect|background))\.\(\*`)

// noGoroutines waits until none runs code of the router but the tests themselves.
func noGoroutines(t testing.TB) {
	t.Helper()
	buf := make([]byte, 1<<20)
	eventually(t, "no goroutine of the router is left", func() bool {
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			g = strings.ReplaceAll(g, "pdrouter/router.(*mem", "") // the network of a test
			if ours.MatchString(g) && !strings.Contains(g, "testing.tRunner") && !strings.Contains(g, "fakeVLLM") {
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

// last waits for the n-th summary and returns it.
func (g *gateway) last(n int) report.Summary {
	g.t.Helper()
	var s report.Summary
	eventually(g.t, "a summary", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.summaries) < n {
			return false
		}
		s = g.summaries[n-1]
		return true
	})
	return s
}

// reply is what a client saw.
type clientReply struct {
	Status int
	Header http.Header
	Body   string
	Err    error // how reading the body ended, if not cleanly
}

// post asks with a JSON body.
func (g *gateway) post(path, body string, header ...string) clientReply {
	g.t.Helper()
	return g.send(http.MethodPost, path, strings.NewReader(body), append([]string{"Content-Type", "application/json"}, header...))
}

// ask asks without a body.
func (g *gateway) ask(method, path string, header ...string) clientReply {
	g.t.Helper()
	return g.send(method, path, nil, header)
}

// send asks with header fields, name and value in turn: of equal names the last counts.
func (g *gateway) send(method, path string, body io.Reader, header []string) clientReply {
	g.t.Helper()
	req, err := http.NewRequest(method, g.url+path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return clientReply{Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return clientReply{Status: resp.StatusCode, Header: resp.Header, Body: string(b), Err: err}
}

// errorOf decodes an OpenAI-shaped error.
func errorOf(t *testing.T, body string) (e struct {
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
	plainBody  = `{"model":"tiny","prompt":"one two three","max_tokens":16}`
	streamBody = `{"model":"tiny","prompt":"one two three","max_tokens":16,"stream":true}`
	wholeText  = "tok0 tok1 tok2 "
)

// text joins what a client got, of a stream or a whole answer, and says whether the stream was whole.
func text(t *testing.T, r clientReply) (string, bool) {
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

// fakeClients knows one key.
type fakeClients struct{ models []string }

func (f fakeClients) Authenticate(authorization string) (auth.Principal, error) {
	if authorization != "Bearer good" {
		return auth.Principal{}, &auth.Error{Code: auth.InvalidToken}
	}
	return auth.Principal{Subject: "someone", Tenant: "team", Models: f.models}, nil
}

// warmed waits until every pair has shaken hands.
func (g *gateway) warmed() {
	g.t.Helper()
	eventually(g.t, "every pair is known", func() bool {
		return !slices.ContainsFunc(g.r.Stats().Pairs, func(p metadata.PairState) bool { return !p.Warm })
	})
	g.settled()
}

// followed waits until every engine's event stream is open.
func (g *gateway) followed() {
	g.t.Helper()
	eventually(g.t, "every event stream is open", func() bool {
		return !slices.ContainsFunc(g.r.Stats().Engines, func(e EngineStats) bool { return !*e.Events })
	})
}

func (g *gateway) freed(end, by string) (n uint64) {
	for _, c := range g.r.Stats().Reclaimed {
		if c.Ending == end && c.By == by {
			n += c.Count
		}
	}
	return n
}

func (g *gateway) blocks(engine string) map[string]int {
	for _, e := range g.r.Stats().Engines {
		if e.Name == engine {
			held := map[string]int{"may_hold": e.Unresolved}
			maps.Copy(held, e.Stranded)
			return held
		}
	}
	return nil
}

// stateOf returns what Stats says of an engine.
func (g *gateway) stateOf(name string) EngineStats {
	for _, e := range g.r.Stats().Engines {
		if e.Name == name {
			return e
		}
	}
	return EngineStats{}
}

// served asks n times, and wants the whole answer each time.
func (g *gateway) served(n int, body string) {
	g.t.Helper()
	for range n {
		r := g.post(pathCompletions, body)
		if r.Status != 200 || r.Err != nil {
			g.t.Fatalf("status %d, %v: %s", r.Status, r.Err, r.Body)
		}
	}
}

// get asks without a body.
func (g *gateway) get(path string, header ...string) clientReply {
	g.t.Helper()
	return g.ask(http.MethodGet, path, header...)
}

// prefixed asks with a body, and returns who computed the prompt.
func (g *gateway) prefixed(nth int, body string) string {
	g.t.Helper()
	if r := g.post("/v1/chat/completions", body); r.Status != 200 {
		g.t.Fatalf("request %d: status %d: %s", nth, r.Status, r.Body)
	}
	s := g.last(nth)
	if s.Prefill == "" {
		return s.Decode
	}
	return s.Prefill
}

// dial is a client's connection.
func (g *gateway) dial(t *testing.T) net.Conn {
	t.Helper()
	dial := new(net.Dialer).DialContext
	if n := netOf(t); n != nil {
		dial = n.dial
	}
	c, err := dial(t.Context(), "tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
