package router_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestFault53and60Streams breaks decode's stream behind its first event: an error event, then the cut, never a clean end.
func TestFault53and60Streams(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		for _, row := range []struct {
			name string
			do   routertest.Fault
		}{
			{"53 D dies", routertest.Fault{Do: routertest.DoBreak, N: 2}},
			{"60 no terminal event", routertest.Fault{Do: routertest.DoNoDone, N: 2}},
			{"60 error event", routertest.Fault{Do: routertest.DoErrFrame, N: 2}},
		} {
			t.Run(row.name+", "+connectorName, func(t *testing.T) {
				s, g := newServed(t, connectorName)
				s.SetFaults(map[string][]routertest.Fault{"decode-0": {row.do}})
				before := s.Cluster.Count("decode-0", "")
				r := g.Post(routertest.PathCompletions, routertest.StreamBody)
				if r.Status != 200 || r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 ||
					!strings.Contains(r.Body, `"choices":[{"index":0,"text":"tok0 "}]`) {
					t.Errorf("status %d, end %v, body %q", r.Status, r.Err, r.Body)
				}
				if sum := g.Summary(1); sum.Outcome != dispatch.FailedAfter || sum.Attempts != 1 || s.Cluster.Count("decode-0", "") != before+1 {
					t.Errorf("decode was asked %d times, summary %+v", s.Cluster.Count("decode-0", "")-before, sum)
				}
				g.WaitIdle()
				s.CheckNothingHeld(t)
			})
		}
	}
}

// leave sends a request and closes the connection when ready says so.
func leave(t *testing.T, g *routertest.Gateway, body string, ready func() bool) {
	t.Helper()
	conn := g.Dial(t)
	defer conn.Close()
	_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(body))))
	routertest.Eventually(t, "the request has come so far", ready)
}

// TestFault58ClientLeaves has the client go during prefill and during decode: both legs end, nothing is held.
func TestFault58ClientLeaves(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		for _, row := range []struct {
			name, body string
			leg        string
			faults     routertest.Fault
		}{
			{"58 during prefill", routertest.PlainBody, "prefill", routertest.Fault{Leg: "prefill", Do: routertest.DoSlow, N: 300}},
			{"58 during prefill, streamed", routertest.StreamBody, "prefill", routertest.Fault{Leg: "prefill", Do: routertest.DoSlow, N: 300}},
			{"58 during decode", routertest.PlainBody, "decode", routertest.Fault{Leg: "decode", Do: routertest.DoSlow, N: 200}},
			{"58 during decode, streamed", routertest.StreamBody, "decode", routertest.Fault{Leg: "decode", Do: routertest.DoSlow, N: 200}},
			{"58 alone", routertest.PlainBody, "alone", routertest.Fault{Leg: "alone", Do: routertest.DoHang}},
			{"58 alone, streamed", routertest.StreamBody, "alone", routertest.Fault{Leg: "alone", Do: routertest.DoSlow, N: 200}},
		} {
			if (connectorName == connector.NameNone) != (row.leg == "alone") {
				continue
			}
			t.Run(row.name+" "+connectorName, func(t *testing.T) {
				s := routertest.NewPool(t, connectorName, 1, 1, nil)
				g := routertest.Start(t, s.Config, router.Parts{})
				if connectorName != connector.NameNone {
					routertest.Eventually(t, "the pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
					g.WaitIdle()
				}
				for _, e := range s.Engines() {
					e.Mu.Lock()
					e.Faults = []routertest.Fault{row.faults}
					e.Mu.Unlock()
				}
				before := s.Cluster.Count("", row.leg)
				leave(t, g, row.body, func() bool { return s.Cluster.Count("", row.leg) > before })
				if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Attempts != 1 {
					t.Errorf("summary %+v", sum)
				}
				g.WaitIdle()
				routertest.Eventually(t, "the engines see the end", func() bool {
					n := 0
					for _, e := range s.Engines() {
						n += e.UnderWay()
					}
					return n == 0
				})
				s.CheckNothingHeld(t)
			})
		}
	}
}

// TestFault58LeavesBehindPrefill has prefill's answer come while a token is on its way to the client, and the client leave
// before the next one: a client that waits for that token is to be told of it, whatever there was to read before.
func TestFault58LeavesBehindPrefill(t *testing.T) {
	const seed = 58
	rng := rand.New(rand.NewPCG(seed, 0))
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	g.WaitWarm()
	p := g.Router.Debug().Engine("prefill-0")
	for i := range 8 {
		s.SetFaults(map[string][]routertest.Fault{
			"prefill-0": {{Leg: "prefill", Do: routertest.DoSlowReply, N: 50 + rng.IntN(100)}},
			"decode-0":  {{Leg: "decode", Do: routertest.DoBigToken, N: 3 << 20}},
		})
		conn, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		prefills := s.Cluster.Count("", "prefill")
		_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, routertest.StreamBody, "Host: a", "Content-Type: application/json",
			fmt.Sprintf("Content-Length: %d", len(routertest.StreamBody))))
		routertest.Eventually(t, "prefill has answered", func() bool { return s.Cluster.Count("", "prefill") > prefills && p.InFlight() == 0 })
		time.Sleep(5 * time.Millisecond) // and its mail lies there
		if n, err := io.Copy(io.Discard, io.LimitReader(conn, 3<<20)); err != nil {
			t.Fatalf("seed %d, repetition %d: %d bytes, %v", seed, i, n, err)
		}
		time.Sleep(20 * time.Millisecond) // the rest leaves, and the relay waits for the next token
		_ = conn.Close()
		if sum := g.Summary(i + 1); sum.Outcome != dispatch.ClientLeft {
			t.Fatalf("seed %d, repetition %d: %+v", seed, i, sum)
		}
	}
	g.WaitIdle()
	s.CheckNothingHeld(t)
}

// TestFault09ClientStopsReading has the client of an endless stream read nothing: its write has a deadline, both legs end, and what
// the engine could say meanwhile is bounded.
func TestFault09ClientStopsReading(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		t.Run("09 "+connectorName, func(t *testing.T) {
			s, parts := routertest.NewPool(t, connectorName, 1, 1, nil), router.Parts{}
			if connectorName == connector.NameKVPlane {
				s, _, parts = routertest.NewPlane(t, 1, 1)
			}
			s.Config.Timeouts.Write = 300 * time.Millisecond
			g := routertest.Start(t, s.Config, parts)
			if connectorName != connector.NameNone {
				g.WaitWarm()
			}
			s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Tokens = 50_000_000 })
			conn := dial(t, g.Addr)
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, routertest.StreamBody, "Host: a", "Content-Type: application/json",
				fmt.Sprintf("Content-Length: %d", len(routertest.StreamBody))))
			sum := g.Summary(1)
			if sum.Outcome != dispatch.ClientLeft || sum.Reason != "slow_client" {
				t.Errorf("outcome %s, reason %s; want client_left, slow_client", sum.Outcome, sum.Reason)
			}
			g.WaitIdle()
			routertest.Eventually(t, "the engines see the end", func() bool {
				n := s.Decode[0].UnderWay()
				for _, p := range s.Prefill {
					n += p.UnderWay()
				}
				return n == 0
			})
			s.CheckNothingHeld(t)
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
	g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Timeouts: config.Timeouts{Write: time.Second}}, router.Parts{})
	conn := dial(t, g.Addr)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, routertest.StreamBody, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(routertest.StreamBody))))
	if sum := g.Summary(1); sum.Reason != "slow_client" {
		t.Errorf("summary %+v", sum)
	}
	if n := <-said; n > 64<<20 {
		t.Errorf("the engine said %d bytes to a client that reads none", n)
	}
}

// TestFault62IdleConnection has the engine close its kept connections between two requests.
func TestFault62IdleConnection(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for i := range 5 {
		r := g.Post(routertest.PathCompletions, routertest.PlainBody)
		if r.Status != 200 {
			t.Fatalf("request %d: status %d: %s", i, r.Status, r.Body)
		}
		s.Decode[0].Server.CloseClientConnections()
	}
	if sum := g.Summary(5); sum.Attempts != 1 {
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
	g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Limits: config.Limits{Attempts: 1}}, router.Parts{})
	ask := func(end bool, want int) []net.Conn {
		mu.Lock()
		asked, closing = nil, end
		mu.Unlock()
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != want {
			t.Fatalf("status %d: %s; want %d", r.Status, r.Body, want)
		}
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
	for try := range 4 {
		kept := ask(false, 200)
		cut := ask(true, 502)
		if sum := g.Summary(2*try + 2); sum.Attempts != 1 {
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
