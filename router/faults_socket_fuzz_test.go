package router_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
)

// socketSeeds are what clients send on one connection.
var socketSeeds = []string{
	secondRequest,
	secondRequest + secondRequest,
	"\r\n" + secondRequest,
	routertest.RawPost("/tokenize", `{"model":"tiny"}`, "Host: a", "Content-Type: application/json", "Content-Length: 16") + secondRequest,
	routertest.RawPost("/tokenize", `{"model":"tiny"}`, "Host: a", "Content-Type: application/json", "Content-Length: 16", "Expect: 100-continue") + secondRequest,
	routertest.RawPost("/tokenize", "10\r\n{\"model\":\"tiny\"}\r\n0\r\n\r\n", "Host: a", "Content-Type: application/json", "Transfer-Encoding: chunked") + secondRequest,
	routertest.RawPost("/tokenize", "3\r\n{\"m\r\nd;x=y\r\nodel\":\"tiny\"}\r\n0\r\nX-A: b\r\nX-Api-Key: good\r\n\r\n", "Host: a", "Content-Type: application/json",
		"Transfer-Encoding: chunked") + secondRequest,
	routertest.RawPost("/tokenize", "10\r\n{\"model\":\"tiny\"}\r\n0\r\nContent-Length: 5\r\n\r\nGET /", "Host: a", "Content-Type: application/json", "Transfer-Encoding: chunked"),
	routertest.RawPost("/v1/audio/transcriptions", oneForm, "Host: a", "Content-Type: multipart/form-data; boundary=b", fmt.Sprintf("Content-Length: %d", len(oneForm))) + secondRequest,
	formRequest("/v1/audio/transcriptions", secondRequest) + secondRequest,
	formRequest("/nowhere", secondRequest) + secondRequest,
	routertest.RawPost("/v1/audio/transcriptions", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(oneForm), oneForm), "Host: a",
		"Content-Type: multipart/form-data; boundary=b", "Transfer-Encoding: chunked") + secondRequest,
	routertest.RawPost("/nowhere", "x", "Host: a", "Content-Length: 1") + secondRequest,
	routertest.RawPost("/v1/models", "{}", "Host: a", "Content-Length: 2") + secondRequest,
	"GET /v1/models HTTP/1.0\r\n\r\n" + secondRequest,
	"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + secondRequest,
	"HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n" + secondRequest,
	routertest.RawPost("/tokenize", `{"model":"tiny"}`, "Host: a", "Content-Type: application/json", "Content-Length: 17"),
	routertest.RawPost("/tokenize", "10\n{\"model\":\"tiny\"}\n0\n\n", "Host: a", "Content-Type: application/json", "Transfer-Encoding: chunked"),
}

// FuzzSocket sends any bytes over a connection to the whole server, cut in two anywhere. net/http reads the same bytes: what
// the gateway has engines asked for, net/http has read as the bodies of requests to those paths, in the same order; and there are
// no more answers than net/http has read requests, but the last, which refuses what follows.
func FuzzSocket(f *testing.F) {
	for i, s := range socketSeeds {
		f.Add([]byte(s), uint16(i*7))
	}
	var mu sync.Mutex
	var asked, late []string
	engine := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost {
			mu.Lock()
			asked = append(asked, r.URL.Path+" "+string(raw))
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"answer"}`)
	})}
	engines, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	go func() { _ = engine.Serve(engines) }()
	r, err := router.New(config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "e", URL: "http://" + engines.Addr().String()}}}}},
		router.Parts{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = r.Serve(ctx, ln) }()
	f.Cleanup(func() { cancel(); <-served; r.Close(); engine.Close() })
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		mu.Lock()
		asked = nil
		mu.Unlock()
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(routertest.Patience))
		first := min(int(cut), len(in))
		_, _ = conn.Write(in[:first])
		_, _ = conn.Write(in[first:])
		_ = conn.(*net.TCPConn).CloseWrite()
		answers, refused := readAnswers(t, conn, in)
		requests, bodies, ok := readRequests(in)
		before := late // the end of what was sent ends a request, which an engine may hear of later
		late = append(bodies, late[:min(len(late), 20)]...)
		if !ok {
			return
		}
		if whole := answers - refused; whole > requests && !bytes.Contains(in, []byte("HEAD ")) { // whose answers have no body
			t.Errorf("%d answers, of which %d refuse, to %d requests:\n%q", answers, refused, requests, in)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, a := range asked {
			if i := slices.Index(bodies, a); i >= 0 {
				bodies = bodies[i+1:]
			} else if !slices.Contains(before, a) {
				t.Fatalf("an engine was asked %q, which net/http does not read in\n%q", a, in)
			}
		}
	})
}

// readAnswers counts the answers on a connection, and how many of them end it because of the request's framing.
func readAnswers(t *testing.T, conn net.Conn, in []byte) (answers, refused int) {
	br := bufio.NewReader(conn)
	for {
		head := &http.Request{Method: http.MethodGet}
		resp, err := http.ReadResponse(br, head)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("no end of the answers to\n%q", in)
			}
			return answers, refused
		}
		if resp.StatusCode == 100 {
			continue
		}
		if answers++; refused > 0 {
			t.Fatalf("an answer behind a refusal of the framing, to\n%q", in)
		}
		if resp.StatusCode == 400 && strings.HasPrefix(resp.Header.Get("X-Pdrouter-Reason"), "bad_") && resp.Close || resp.StatusCode == 431 {
			refused++
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return answers, refused
		}
	}
}

// readRequests reads requests as net/http does, until it cannot: how many there were, and the path and body of each POST. It
// reports false if it ended at a target or a host that net/http alone refuses, so that it cannot say what follows.
func readRequests(in []byte) (n int, bodies []string, ok bool) {
	br := bufio.NewReader(bytes.NewReader(in))
	for {
		for { // empty lines before a request are skipped (RFC 9112, 2.2), which net/http does not do
			if empty, _ := br.Peek(2); string(empty) != "\r\n" {
				break
			}
			_, _ = br.Discard(2)
		}
		req, err := http.ReadRequest(br)
		var target *url.Error
		if err != nil {
			return n, bodies, !errors.As(err, &target) && !strings.Contains(err.Error(), "malformed Host")
		}
		n++
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			return n, bodies, true
		}
		if req.Method == http.MethodPost {
			bodies = append(bodies, req.URL.Path+" "+string(raw))
		}
	}
}
