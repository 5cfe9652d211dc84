package router_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/racetest"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// holdingEngine is a decode engine whose streams are the test's to write: it answers a request that says so with a head, and hands
// its connection over. Whatever else it is asked it has a canned engine answer.
func holdingEngine(tb testing.TB) (url string, held <-chan net.Conn) {
	canned := strings.TrimPrefix(newCannedEngine(tb), "http://")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	conns := make(chan net.Conn, 1)
	serve := func(c net.Conn) {
		defer c.Close()
		behind, err := net.Dial("tcp", canned)
		if err != nil {
			return
		}
		defer behind.Close()
		buf := make([]byte, 64<<10)
		for {
			_, n, err := readCanned(c, buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte("hold this stream")) {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
				conns <- c
				<-tb.Context().Done()
				return
			}
			if _, err := behind.Write(buf[:n]); err != nil {
				return
			}
			if _, n, err = readCanned(behind, buf); err != nil {
				return
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + ln.Addr().String(), conns
}

// heldStream is a stream under way through a router: what is written to engine comes out of client.
func heldStream(tb testing.TB) (engine, client net.Conn) {
	url, held := holdingEngine(tb)
	g := routertest.Start(tb, config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePull,
		Prefill: []config.Engine{{Name: "prefill-0", URL: newCannedEngine(tb)}},
		Decode:  []config.Engine{{Name: "decode-0", URL: url}},
	}}}, router.Parts{Log: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	client, err := net.Dial("tcp", g.Addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	ask := func(content string, stream bool) {
		body := fmt.Sprintf(`{"model":"m","stream":%t,"max_tokens":16,"messages":[{"role":"user","content":%q}]}`, stream, strings.Repeat("word ", 180)+content)
		fmt.Fprintf(client, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	buf := make([]byte, 64<<10)
	routertest.Eventually(tb, "a request is split", func() bool { // the pair has to be warm
		ask("", false)
		_, n, err := readCanned(client, buf)
		return err == nil && bytes.Contains(buf[:n], []byte("X-Pdrouter-Reason: split"))
	})
	ask("hold this stream", true)
	engine = <-held
	if _, err := engine.Write(heldChunk(0)); err != nil { // the head is sent with the first event
		tb.Fatal(err)
	}
	for n := 0; !bytes.HasSuffix(buf[:n], heldChunk(0)); {
		more, err := client.Read(buf[n:])
		if n += more; err != nil {
			tb.Fatalf("%v behind %s", err, buf[:n])
		}
	}
	return engine, client
}

// heldChunk is an event as an engine and the router send it.
func heldChunk(token int) []byte {
	event := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" ` + strconv.Itoa(token%10) + `"},"finish_reason":null}]}` + "\n\n"
	return fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
}

// What one event costs is paid for every token of every client. A change that allocates for it says so here.
func TestAllocationsPerEvent(t *testing.T) {
	want := 0.0
	if racetest.Enabled() {
		want = 3 // it has pools forget some of what they keep
	}
	engine, client := heldStream(t)
	chunk, got := heldChunk(1), make([]byte, len(heldChunk(1)))
	for _, c := range []net.Conn{engine, client} {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	relay := func() {
		if _, err := engine.Write(chunk); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, chunk) {
			t.Fatalf("got %q, %v, want %q", got, err, chunk)
		}
	}
	for range 100 {
		relay()
	}
	allocs := testing.AllocsPerRun(500, relay)
	for n := 1; n < 5 && allocs > want; n++ { // what runs beside it can only add
		allocs = min(allocs, testing.AllocsPerRun(500, relay))
	}
	if allocs > want {
		t.Errorf("an event makes %.0f allocations, want at most %.0f", allocs, want)
	} else {
		t.Logf("%.0f allocations an event, at most %.0f", allocs, want)
	}
}

func BenchmarkEvent(b *testing.B) {
	engine, client := heldStream(b)
	chunk, got := heldChunk(1), make([]byte, len(heldChunk(1)))
	b.ReportAllocs()
	for b.Loop() {
		engine.Write(chunk)
		if _, err := io.ReadFull(client, got); err != nil {
			b.Fatal(err)
		}
	}
}
