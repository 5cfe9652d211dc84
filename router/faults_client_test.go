package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// TestFault53and60Streams breaks decode's stream behind its first event: an error event, then the cut, never a clean end.
func TestFault53and60Streams(t *testing.T) {
	for _, connector := range []string{ConnectorNone, ConnectorPush, ConnectorPull} {
		for _, row := range []struct {
			name string
			do   fault
		}{
			{"53 D dies", fault{Do: doBreak, N: 2}},
			{"60 no terminal event", fault{Do: doNoDone, N: 2}},
			{"60 error event", fault{Do: doErrFrame, N: 2}},
		} {
			t.Run(connector+" "+row.name, func(t *testing.T) {
				s := newPool(t, connector, 1, 1, nil)
				g := start(t, s.cfg, Parts{})
				if connector != ConnectorNone {
					eventually(t, "the pair is known", func() bool { return g.r.pairs.Stats().Ready == 1 })
				}
				s.d[0].mu.Lock()
				s.d[0].faults = []fault{row.do}
				s.d[0].mu.Unlock()
				r := g.post(pathCompletions, streamBody)
				if r.Status != 200 || r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 ||
					!strings.HasPrefix(r.Body, `data: {"choices":[{"index":0,"text":"tok0 "}]}`) {
					t.Errorf("status %d, end %v, body %q", r.Status, r.Err, r.Body)
				}
				if sum := g.last(1); sum.Outcome != FailedAfter || sum.Attempts != 1 {
					t.Errorf("summary %+v", sum)
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
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, rawPost(pathCompletions, body, "Host: a", "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(body))))
	eventually(t, "the request has come so far", ready)
}

// TestFault58ClientLeaves has the client go during prefill and during decode: both legs end, nothing is held.
func TestFault58ClientLeaves(t *testing.T) {
	for _, connector := range []string{ConnectorNone, ConnectorPush, ConnectorPull} {
		for _, row := range []struct {
			name, body string
			leg        string
			faults     fault
		}{
			{"during prefill", plainBody, "prefill", fault{Leg: "prefill", Do: doSlow, N: 300}},
			{"during prefill, streamed", streamBody, "prefill", fault{Leg: "prefill", Do: doSlow, N: 300}},
			{"during decode", plainBody, "decode", fault{Leg: "decode", Do: doSlow, N: 200}},
			{"during decode, streamed", streamBody, "decode", fault{Leg: "decode", Do: doSlow, N: 200}},
			{"alone", plainBody, "alone", fault{Leg: "alone", Do: doHang}},
			{"alone, streamed", streamBody, "alone", fault{Leg: "alone", Do: doSlow, N: 200}},
		} {
			if (connector == ConnectorNone) != (row.leg == "alone") {
				continue
			}
			t.Run(connector+" "+row.name, func(t *testing.T) {
				s := newPool(t, connector, 1, 1, nil)
				g := start(t, s.cfg, Parts{})
				if connector != ConnectorNone {
					eventually(t, "the pair is known", func() bool { return g.r.pairs.Stats().Ready == 1 })
					g.settled()
				}
				for _, e := range s.engines() {
					e.mu.Lock()
					e.faults = []fault{row.faults}
					e.mu.Unlock()
				}
				before := s.c.count("", row.leg)
				leave(t, g, row.body, func() bool { return s.c.count("", row.leg) > before })
				if sum := g.last(1); sum.Outcome != ClientLeft || sum.Attempts != 1 {
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
	s := newPool(t, ConnectorPush, 1, 1, nil)
	g := start(t, s.cfg, Parts{})
	g.warmed()
	p := g.r.fleet.engine("prefill-0")
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
		eventually(t, "prefill has answered", func() bool { return s.c.count("", "prefill") > prefills && p.inFlight.Load() == 0 })
		time.Sleep(5 * time.Millisecond) // and its mail lies there
		if n, err := io.Copy(io.Discard, io.LimitReader(conn, 3<<20)); err != nil {
			t.Fatalf("seed %d, repetition %d: %d bytes, %v", seed, i, n, err)
		}
		time.Sleep(20 * time.Millisecond) // the rest leaves, and the relay waits for the next token
		_ = conn.Close()
		if sum := g.last(i + 1); sum.Outcome != ClientLeft {
			t.Fatalf("seed %d, repetition %d: %+v", seed, i, sum)
		}
	}
	g.settled()
	s.noHeld(t)
}

// TestFault09ClientStopsReading has the client of an endless stream read nothing.
func TestFault09ClientStopsReading(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	s.d[0].tokens = 50_000_000
	s.cfg.Timeouts.Write = 300 * time.Millisecond
	g := start(t, s.cfg, Parts{})
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, _ = io.WriteString(conn, rawPost(pathCompletions, streamBody, "Host: a", "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(streamBody))))
	sum := g.last(1)
	if sum.Outcome != ClientLeft || sum.Reason != "slow_client" {
		t.Errorf("outcome %s, reason %s; want client_left, slow_client", sum.Outcome, sum.Reason)
	}
	g.settled()
	eventually(t, "the engine sees the end", func() bool { return s.d[0].underWay() == 0 })
}

// TestFault62IdleConnection has the engine close its kept connections between two requests.
func TestFault62IdleConnection(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
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

// TestFault66Shutdown ends the router with streams under way: those that can finish do, the others are cut with an
// error event.
func TestFault66Shutdown(t *testing.T) {
	for _, row := range []struct {
		name  string
		slow  int // milliseconds between two tokens
		drain time.Duration
		whole bool
	}{
		{"within the drain time", 50, 30 * time.Second, true},
		{"not within the drain time", 60_000, 200 * time.Millisecond, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newPool(t, ConnectorNone, 0, 1, nil)
			s.cfg.Timeouts.Drain = row.drain
			g := start(t, s.cfg, Parts{})
			ctx, cancel := context.WithTimeout(context.Background(), longEnough)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+pathCompletions, strings.NewReader(streamBody))
			req.Header.Set("Content-Type", "application/json")
			s.d[0].faults = []fault{{Do: doLateToken, N: row.slow}}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first := make([]byte, 10)
			if _, err := io.ReadFull(resp.Body, first); err != nil {
				t.Fatal(err)
			}
			stopped := make(chan struct{})
			go func() { g.stop(); close(stopped) }()
			eventually(t, "the router is not ready", func() bool { return !g.r.Stats().Ready })
			rest, err := io.ReadAll(resp.Body)
			<-stopped
			body := string(first) + string(rest)
			if row.whole && (err != nil || !strings.HasSuffix(body, "data: [DONE]\n\n")) {
				t.Errorf("end %v, body %q", err, body)
			}
			if !row.whole && (err == nil || strings.Contains(body, "[DONE]") || !strings.Contains(body, `{"error"`)) {
				t.Errorf("end %v, body %q", err, body)
			}
		})
	}
}

// TestFault66ShutdownWaitsForNoSilentConnection has clients that have opened connections and sent nothing.
func TestFault66ShutdownWaitsForNoSilentConnection(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	s.cfg.Timeouts.Drain, s.cfg.Timeouts.Read = time.Hour, time.Hour
	g := start(t, s.cfg, Parts{})
	if r := g.post(pathCompletions, plainBody); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if r := g.post(pathCompletions, plainBody); r.Status != 200 { // by now the silent one is accepted
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	stopped := make(chan struct{})
	go func() { g.stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(longEnough):
		t.Fatal("a connection that brought nothing holds up the end")
	}
	_ = conn.SetReadDeadline(time.Now().Add(longEnough))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v; want the end of the connection", n, err)
	}
}

// panicky is a planner that panics.
type panicky struct{ Planner }

// TestFault68Panic has a part panic: the request fails, the process and the next request live.
func TestFault68Panic(t *testing.T) {
	s := newPool(t, ConnectorNone, 0, 1, nil)
	g := start(t, s.cfg, Parts{Planner: panicky{}})
	for range 2 {
		r := g.post(pathCompletions, plainBody)
		if e := errorOf(t, r.Body); r.Status != 500 || e.Type != typeInternal {
			t.Errorf("status %d: %s", r.Status, r.Body)
		}
	}
}
