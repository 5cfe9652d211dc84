package router_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/stored"
)

// TestFault66ShutdownAnswersHalfSent has clients that have not sent their whole request when the drain time is over: they are
// told to go elsewhere.
func TestFault66ShutdownAnswersHalfSent(t *testing.T) {
	const head = "POST " + routertest.PathCompletions + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Timeouts.Drain, s.Config.Timeouts.Read = 200*time.Millisecond, time.Hour
	g := routertest.Start(t, s.Config, router.Parts{})
	type sender struct {
		name string
		conn net.Conn
		from *bufio.Reader
	}
	var senders []sender
	for _, row := range []struct {
		name   string
		before bool   // the connection has served a request
		sent   string // behind the head
	}{
		{"no body", false, ""},
		{"half a body", false, `{"model":"tiny","prompt":`},
		{"half a body behind another request", true, `{"model":"tiny","prompt":`},
	} {
		conn, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(routertest.Patience))
		from := bufio.NewReader(conn)
		if row.before {
			_, _ = io.WriteString(conn, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(from, nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%s: %v, %v", row.name, resp, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		// The 100 says that the head was read, and the body is waited for.
		_, _ = io.WriteString(conn, head+"Expect: 100-continue\r\n\r\n")
		if line, err := from.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
			t.Fatalf("%s: %q, %v", row.name, line, err)
		}
		_, _ = from.ReadString('\n')
		_, _ = io.WriteString(conn, row.sent)
		senders = append(senders, sender{row.name, conn, from})
	}
	stopped := make(chan struct{})
	go func() { g.Stop(); close(stopped) }()
	for _, c := range senders {
		resp, err := http.ReadResponse(c.from, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		var said struct {
			Error struct{ Message, Type string }
		}
		if jerr := json.Unmarshal(body, &said); err != nil || jerr != nil || said.Error.Message == "" {
			t.Errorf("%s: body %q, %v, %v", c.name, body, err, jerr)
		}
		if h := resp.Header; resp.StatusCode != 503 || h.Get("X-Pdrouter-Reason") != "draining" || h.Get("Retry-After") == "" || !resp.Close {
			t.Errorf("%s: status %d, header %v, close %v", c.name, resp.StatusCode, h, resp.Close)
		}
		if n, err := c.from.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: the connection stays open", c.name)
		}
	}
	<-stopped
}

// slowResponses finds every response at one engine, once it may.
type slowResponses struct{ entered, let chan struct{} }

func (f *slowResponses) Put(string, []byte, time.Duration) {}
func (f *slowResponses) Await(string)                      {}
func (f *slowResponses) Get(context.Context, string) ([]byte, bool, error) {
	close(f.entered)
	<-f.let
	return stored.Holder{Engine: "decode-0", Model: "tiny", Owner: stored.Owner("", "")}.Value(), true, nil
}

// TestFault66ShutdownBehindALookup has a request be looked up until the drain time is over: it is refused as all others, and no engine is
// asked.
func TestFault66ShutdownBehindALookup(t *testing.T) {
	var asked atomic.Int64
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		asked.Add(1)
		<-r.Context().Done()
	})
	defer e.Server.Close()
	defer e.Server.CloseClientConnections()
	found := &slowResponses{make(chan struct{}), make(chan struct{})}
	cfg := routertest.AnyFleet(e)
	cfg.Timeouts.Drain = 300 * time.Millisecond
	g := routertest.Start(t, cfg, router.Parts{Responses: found})
	got := make(chan routertest.Reply, 1)
	go func() {
		got <- g.Post(routertest.PathResponses, `{"model":"tiny","input":"b","previous_response_id":"resp_0123456789abcdef0123456789abcdef"}`)
	}()
	<-found.entered
	stopped := make(chan struct{})
	go func() { g.Stop(); close(stopped) }()
	time.Sleep(2 * cfg.Timeouts.Drain)
	close(found.let)
	if r := <-got; r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "draining" || asked.Load() > 0 {
		t.Errorf("status %d, reason %q, engines asked %d times; want 503, draining and none", r.Status, r.Header.Get("X-Pdrouter-Reason"), asked.Load())
	}
	<-stopped
}

// TestFault66ShutdownBehindUnreadAnswers has a client that does not read its stream when the drain time is over, and that may take an hour
// for one write: the gateway ends without it, and has given back by then what the request held.
func TestFault66ShutdownBehindUnreadAnswers(t *testing.T) {
	for _, row := range []struct{ name, connector, n string }{
		{"alone", connector.NameNone, ""}, {"a pair", connector.NamePush, ""}, {"choices", connector.NamePush, `"n":3,`},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, parts := routertest.NewPoolIn(t, routertest.NetOf(t), row.connector, 1, 1)
			s.Config.Timeouts.Write, s.Config.Timeouts.Drain = time.Hour, time.Second
			limits := new(fakeLimiter)
			parts.Limiter = limits
			g := routertest.Start(t, s.Config, parts)
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Tokens = 20_000 })
			conn := g.Dial(t)
			defer conn.Close()
			body := strings.Replace(routertest.StreamBody, `"prompt"`, row.n+`"prompt"`, 1)
			_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
			time.Sleep(time.Second) // the answer has filled what lies between
			begun := time.Now()
			g.Stop()
			if took := time.Since(begun); took > 2*s.Config.Timeouts.Drain+2*time.Second {
				t.Errorf("the gateway took %v to stop", took)
			}
			if n, open := g.Router.Stats().Requests, limits.open.Load(); n != 0 || open != 0 {
				t.Errorf("%d requests are under way, %d leases are open", n, open)
			}
			if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Reason != "slow_client" {
				t.Errorf("summary %+v", sum)
			}
			g.WaitIdle()
		})
	}
}
