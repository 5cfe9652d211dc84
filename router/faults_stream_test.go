package router_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
)

// rawEngine speaks raw bytes: do is given every generation that comes, and the connection.
func rawEngine(t *testing.T, do func(n int, conn net.Conn)) config.Engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	var n atomic.Int64
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				br := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if req.Method != http.MethodPost {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
						continue
					}
					do(int(n.Add(1)), conn)
				}
			}()
		}
	}()
	return config.Engine{Name: "raw", URL: "http://" + ln.Addr().String()}
}

const rawStreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

func rawChunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// TestFault59Splits cuts a stream with events of all kinds at every byte, and at random ones: the client has the same bytes.
func TestFault59Splits(t *testing.T) {
	small := "data: {\"choices\":[{\"index\":0,\"text\":\"grüße 🎉\"}]}\n\n: comment\r\n\r\n" +
		"data: {\"choices\":[{\"index\":0,\"text\":\"[DONE]\"}]}\r\n\r\ndata: [DONE]\n\n"
	big := "data: {\"choices\":[{\"index\":0,\"text\":\"" + strings.Repeat("é", 1<<19) + "\"}]}\n\n" + small
	cuts := make([][]string, 0, len(small)+20)
	for i := 1; i < len(small); i++ {
		cuts = append(cuts, []string{small[:i], small[i:]})
	}
	rng := rand.New(rand.NewPCG(59, 0))
	for range 20 {
		var parts []string
		for rest := big; rest != ""; {
			n := min(1+rng.IntN(1<<17), len(rest))
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		cuts = append(cuts, parts)
	}
	e := rawEngine(t, func(n int, conn net.Conn) {
		_, _ = io.WriteString(conn, rawStreamHead)
		for _, part := range cuts[n-1] {
			_, _ = io.WriteString(conn, rawChunk(part))
		}
		_, _ = io.WriteString(conn, "0\r\n\r\n")
	})
	g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}}, router.Parts{})
	for i, parts := range cuts {
		if r := g.Post(routertest.PathCompletions, routertest.StreamBody); r.Body != strings.Join(parts, "") || r.Err != nil {
			t.Fatalf("cut %d: %d bytes, %v; want %d: %.200q", i, len(r.Body), r.Err, len(strings.Join(parts, "")), r.Body)
		}
	}
}

// TestFault61BadHeads has the engine answer what two readers could take for two things: 502, and the next request on a new
// connection is served.
func TestFault61BadHeads(t *testing.T) {
	const whole = `{"choices":[{"index":0,"text":"ok"}]}`
	good := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole)
	for _, row := range []struct{ name, answer string }{
		{"61 length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + good},
		{"61 two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + good},
		{"61 two other lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + good},
		{"61 a length that is none", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}" + good},
		{"61 another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + good},
		{"61 space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}" + good},
		{"61 folded line", "HTTP/1.1 200 OK\r\nX-A: b\r\n Content-Length: 2\r\n\r\n{}" + good},
		{"61 a chunk that is none", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"},
		{"61 many interim answers", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20) + good},
		{"61 switching protocols", "HTTP/1.1 101 Switching Protocols\r\n\r\n" + good},
		{"61 huge head", "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 128<<10) + "\r\n\r\n" + good},
		{"61 more than its length", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\nno" + good},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := rawEngine(t, func(n int, conn net.Conn) {
				if n == 1 {
					_, _ = io.WriteString(conn, row.answer)
					return
				}
				_, _ = io.WriteString(conn, good)
			})
			g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Limits: config.Limits{Attempts: 1}}, router.Parts{})
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if routertest.ErrorOf(t, r.Body); r.Status != 502 || r.Header.Get("X-Pdrouter-Reason") != "bad_upstream" {
				t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
			}
			for range 2 {
				if got, _ := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody)); got != "ok" {
					t.Errorf("text %q", got)
				}
			}
		})
	}
}

// TestFault59EventBeyondTheCap has an event come that is larger than any may be: an error event, and the cut. A stream that breaks
// its own framing ends in the same way.
func TestFault59EventBeyondTheCap(t *testing.T) {
	first := "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
	for name, rest := range map[string]string{
		"59 without an end":   rawChunk("data: " + strings.Repeat("a", 2<<20)),
		"59 in small chunks":  strings.Repeat(rawChunk(strings.Repeat("a", 1<<10)), 2<<10),
		"61 no chunk":         "zz\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
		"60 an answer behind": rawChunk(`{"choices":[{"text":"b"}]}`) + "0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			e := rawEngine(t, func(_ int, conn net.Conn) { _, _ = io.WriteString(conn, rawStreamHead+rawChunk(first)+rest) })
			g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Limits: config.Limits{Event: 1 << 20}, Timeouts: config.Timeouts{StreamIdle: 5 * time.Second}}, router.Parts{})
			r := g.Post(routertest.PathCompletions, routertest.StreamBody)
			if r.Status != 200 || r.Err == nil || !strings.HasPrefix(r.Body, first) || strings.Contains(r.Body, "[DONE]") ||
				strings.Count(r.Body, `{"error"`) != 1 || len(r.Body) > 4<<10 {
				t.Errorf("status %d, end %v, %d bytes: %.500s", r.Status, r.Err, len(r.Body), r.Body)
			}
			if sum := g.Summary(1); sum.Outcome != dispatch.FailedAfter {
				t.Errorf("summary %+v", sum)
			}
		})
	}
}

// TestKeepAlive has the engine fall silent between two events, and in the middle of one: comments come between whole events
// only, and the connection serves the next request.
func TestKeepAlive(t *testing.T) {
	first, second := "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n", "data: {\"choices\":[{\"index\":0,\"text\":\"b\"}]}\n\n"
	for _, every := range []time.Duration{100 * time.Millisecond, 0} {
		t.Run(every.String(), func(t *testing.T) {
			var conns atomic.Int64
			seen := map[net.Conn]bool{}
			e := rawEngine(t, func(_ int, conn net.Conn) {
				if !seen[conn] { // one request after the other
					seen[conn] = true
					conns.Add(1)
				}
				_, _ = io.WriteString(conn, rawStreamHead+rawChunk(first))
				time.Sleep(300 * time.Millisecond)
				_, _ = io.WriteString(conn, rawChunk(second[:20]))
				time.Sleep(300 * time.Millisecond)
				_, _ = io.WriteString(conn, rawChunk(second[20:])+rawChunk("data: [DONE]\n\n")+"0\r\n\r\n")
			})
			g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Timeouts: config.Timeouts{KeepAlive: &every}}, router.Parts{})
			for range 2 {
				r := g.Post(routertest.PathCompletions, routertest.StreamBody)
				n := strings.Count(r.Body, ": keep-alive\n\n")
				if got := strings.ReplaceAll(r.Body, ": keep-alive\n\n", ""); got != first+second+"data: [DONE]\n\n" || r.Err != nil {
					t.Errorf("end %v, body %q", r.Err, r.Body)
				}
				if (n > 0) != (every > 0) || every > 0 && n < 2 {
					t.Errorf("%d comments in %q", n, r.Body)
				}
				time.Sleep(2 * every) // a time set for the read must not outlast the stream
			}
			if n := conns.Load(); n != 1 {
				t.Errorf("%d connections; want 1", n)
			}
		})
	}
}
