package router

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestFault53and60Streams breaks decode's stream behind its first event: an error event, then the cut, never a clean end.
func TestFault53and60Streams(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		for _, row := range []struct {
			name string
			do   fault
		}{
			{"53 D dies", fault{Do: doBreak, N: 2}},
			{"60 no terminal event", fault{Do: doNoDone, N: 2}},
			{"60 error event", fault{Do: doErrFrame, N: 2}},
		} {
			t.Run(row.name+", "+connectorName, func(t *testing.T) {
				s, g := newServed(t, connectorName)
				s.setFaults(map[string][]fault{"decode-0": {row.do}})
				before := s.c.count("decode-0", "")
				r := g.post(pathCompletions, streamBody)
				if r.Status != 200 || r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 ||
					!strings.Contains(r.Body, `"choices":[{"index":0,"text":"tok0 "}]`) {
					t.Errorf("status %d, end %v, body %q", r.Status, r.Err, r.Body)
				}
				if sum := g.last(1); sum.Outcome != report.FailedAfter || sum.Attempts != 1 || s.c.count("decode-0", "") != before+1 {
					t.Errorf("decode was asked %d times, summary %+v", s.c.count("decode-0", "")-before, sum)
				}
				g.settled()
				s.noHeld(t)
			})
		}
	}
}

// leave sends a request and closes the connection when ready says so.
func leave(t *testing.T, g *gateway, body string, ready func() bool) {
	t.Helper()
	conn := g.dial(t)
	defer conn.Close()
	_, _ = io.WriteString(conn, rawPost(pathCompletions, body, "Host: a", "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(body))))
	eventually(t, "the request has come so far", ready)
}

// TestFault58ClientLeaves has the client go during prefill and during decode: both legs end, nothing is held.
func TestFault58ClientLeaves(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		for _, row := range []struct {
			name, body string
			leg        string
			faults     fault
		}{
			{"58 during prefill", plainBody, "prefill", fault{Leg: "prefill", Do: doSlow, N: 300}},
			{"58 during prefill, streamed", streamBody, "prefill", fault{Leg: "prefill", Do: doSlow, N: 300}},
			{"58 during decode", plainBody, "decode", fault{Leg: "decode", Do: doSlow, N: 200}},
			{"58 during decode, streamed", streamBody, "decode", fault{Leg: "decode", Do: doSlow, N: 200}},
			{"58 alone", plainBody, "alone", fault{Leg: "alone", Do: doHang}},
			{"58 alone, streamed", streamBody, "alone", fault{Leg: "alone", Do: doSlow, N: 200}},
		} {
			if (connectorName == connector.NameNone) != (row.leg == "alone") {
				continue
			}
			t.Run(row.name+" "+connectorName, func(t *testing.T) {
				s := newPool(t, connectorName, 1, 1, nil)
				g := start(t, s.cfg, Parts{})
				if connectorName != connector.NameNone {
					eventually(t, "the pair is known", func() bool { return g.r.Stats().Handshakes.Ready == 1 })
					g.settled()
				}
				for _, e := range s.engines() {
					e.mu.Lock()
					e.faults = []fault{row.faults}
					e.mu.Unlock()
				}
				before := s.c.count("", row.leg)
				leave(t, g, row.body, func() bool { return s.c.count("", row.leg) > before })
				if sum := g.last(1); sum.Outcome != report.ClientLeft || sum.Attempts != 1 {
					t.Errorf("summary %+v", sum)
				}
				g.settled()
				eventually(t, "the engines see the end", func() bool {
					n := 0
					for _, e := range s.engines() {
						n += e.underWay()
					}
					return n == 0
				})
				s.noHeld(t)
			})
		}
	}
}

// TestFault58LeavesBehindPrefill has prefill's answer come while a token is on its way to the client, and the client leave
// before the next one: whoever waits for that token is to be told of it, whatever there was to read before.
func TestFault58LeavesBehindPrefill(t *testing.T) {
	const seed = 58
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newPool(t, connector.NamePush, 1, 1, nil)
	g := start(t, s.cfg, Parts{})
	g.warmed()
	p := g.r.Debug().Engine("prefill-0")
	for i := range 8 {
		s.setFaults(map[string][]fault{
			"prefill-0": {{Leg: "prefill", Do: doSlowReply, N: 50 + rng.IntN(100)}},
			"decode-0":  {{Leg: "decode", Do: doBigToken, N: 3 << 20}},
		})
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		prefills := s.c.count("", "prefill")
		_, _ = io.WriteString(conn, rawPost(pathCompletions, streamBody, "Host: a", "Content-Type: application/json",
			fmt.Sprintf("Content-Length: %d", len(streamBody))))
		eventually(t, "prefill has answered", func() bool { return s.c.count("", "prefill") > prefills && p.InFlight() == 0 })
		time.Sleep(5 * time.Millisecond) // and its mail lies there
		if n, err := io.Copy(io.Discard, io.LimitReader(conn, 3<<20)); err != nil {
			t.Fatalf("seed %d, repetition %d: %d bytes, %v", seed, i, n, err)
		}
		time.Sleep(20 * time.Millisecond) // the rest leaves, and the relay waits for the next token
		_ = conn.Close()
		if sum := g.last(i + 1); sum.Outcome != report.ClientLeft {
			t.Fatalf("seed %d, repetition %d: %+v", seed, i, sum)
		}
	}
	g.settled()
	s.noHeld(t)
}

// TestFault09ClientStopsReading has the client of an endless stream read nothing: its write has a deadline, both legs end, and what
// the engine could say meanwhile is bounded.
func TestFault09ClientStopsReading(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		t.Run("09 "+connectorName, func(t *testing.T) {
			s, parts := newPool(t, connectorName, 1, 1, nil), Parts{}
			if connectorName == connector.NameKVPlane {
				s, _, parts = newPlane(t, 1, 1)
			}
			s.cfg.Timeouts.Write = 300 * time.Millisecond
			g := start(t, s.cfg, parts)
			if connectorName != connector.NameNone {
				g.warmed()
			}
			s.d[0].answers(func(h *habit) { h.tokens = 50_000_000 })
			conn := dial(t, g.addr)
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			_, _ = io.WriteString(conn, rawPost(pathCompletions, streamBody, "Host: a", "Content-Type: application/json",
				fmt.Sprintf("Content-Length: %d", len(streamBody))))
			sum := g.last(1)
			if sum.Outcome != report.ClientLeft || sum.Reason != "slow_client" {
				t.Errorf("outcome %s, reason %s; want client_left, slow_client", sum.Outcome, sum.Reason)
			}
			g.settled()
			eventually(t, "the engines see the end", func() bool {
				n := s.d[0].underWay()
				for _, p := range s.p {
					n += p.underWay()
				}
				return n == 0
			})
			s.noHeld(t)
		})
	}
}

// TestFault09Buffer counts what an engine can say to a client that reads nothing: what the sockets on the way hold, and little more.
func TestFault09Buffer(t *testing.T) {
	said := make(chan int, 1)
	e := rawEngine(t, func(_ int, conn net.Conn) {
		_, _ = io.WriteString(conn, rawStreamHead)
		event, n := rawChunk("data: {\"choices\":[{\"index\":0,\"text\":\""+strings.Repeat("a", 60<<10)+"\"}]}\n\n"), 0
		for ; n < 512<<20; n += len(event) {
			if _, err := io.WriteString(conn, event); err != nil {
				break
			}
		}
		said <- n
	})
	g := start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Timeouts: config.Timeouts{Write: time.Second}}, Parts{})
	conn := dial(t, g.addr)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, _ = io.WriteString(conn, rawPost(pathCompletions, streamBody, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(streamBody))))
	if sum := g.last(1); sum.Reason != "slow_client" {
		t.Errorf("summary %+v", sum)
	}
	if n := <-said; n > 64<<20 {
		t.Errorf("the engine said %d bytes to a client that reads none", n)
	}
}

// TestFault62IdleConnection has the engine close its kept connections between two requests.
func TestFault62IdleConnection(t *testing.T) {
	s := newPool(t, connector.NameNone, 0, 1, nil)
	g := start(t, s.cfg, Parts{})
	for i := range 5 {
		r := g.post(pathCompletions, plainBody)
		if r.Status != 200 {
			t.Fatalf("request %d: status %d: %s", i, r.Status, r.Body)
		}
		s.d[0].srv.CloseClientConnections()
	}
	if sum := g.last(5); sum.Attempts != 1 {
		t.Errorf("%d attempts; want 1", sum.Attempts)
	}
}

// TestFault62OnceOnly has the engine close a kept connection, and every new one too: a leg is sent once more, on a new
// connection, and then its failure is the attempt's.
func TestFault62OnceOnly(t *testing.T) {
	var mu sync.Mutex
	var asked []net.Conn // on which connection each request came
	closing := false
	e := rawEngine(t, func(_ int, conn net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if asked = append(asked, conn); closing {
			_ = conn.Close()
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 37\r\n\r\n"+`{"choices":[{"index":0,"text":"ok"}]`+"}")
	})
	g := start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Limits: config.Limits{Attempts: 1}}, Parts{})
	ask := func(end bool, want int) []net.Conn {
		mu.Lock()
		asked, closing = nil, end
		mu.Unlock()
		if r := g.post(pathCompletions, plainBody); r.Status != want {
			t.Fatalf("status %d: %s; want %d", r.Status, r.Body, want)
		}
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
	for try := range 4 {
		kept := ask(false, 200)
		cut := ask(true, 502)
		if sum := g.last(2*try + 2); sum.Attempts != 1 {
			t.Errorf("%d attempts; want 1", sum.Attempts)
		}
		if cut[0] != kept[0] {
			continue // the router's own question after health or models had the kept connection just then
		}
		if len(cut) != 2 || cut[1] == kept[0] {
			t.Errorf("asked %d times; want 2, the second on a new connection", len(cut))
		}
		return
	}
	t.Error("no request came on the kept connection")
}
