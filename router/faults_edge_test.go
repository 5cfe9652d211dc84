package router_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// secondRequest stands behind a head over which parsers could disagree.
const secondRequest = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"

// TestFault01to06Framing sends heads over which two parsers could disagree, each with a second request behind it.
func TestFault01to06Framing(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	n := fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody))
	json := "Content-Type: application/json"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody)
	many := make([]string, 0, 110)
	for i := range 105 {
		many = append(many, fmt.Sprintf("X-H%d: v", i))
	}
	for _, row := range []struct {
		name, request  string
		status, reason string
	}{
		{"01 length and chunked", routertest.RawPost(routertest.PathCompletions, chunked, "Host: a", json, n, "Transfer-Encoding: chunked"), "400", "bad_framing"},
		{"02 two lengths", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, n), "400", "bad_framing"},
		{"02 two other lengths", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "Content-Length: 1"), "400", "bad_framing"},
		{"02 length +4", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, "Content-Length: +4"), "400", "bad_framing"},
		{"02 length 4,4", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, "Content-Length: 4,4"), "400", "bad_framing"},
		{"02 length overflows", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, "Content-Length: 99999999999999999999"), "400", "bad_framing"},
		{"02 length wraps around", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, "Content-Length: 18446744073709551618"), "400", "bad_framing"},
		{"02 hexadecimal length", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, "Content-Length: 0x2"), "400", "bad_framing"},
		{"03 two codings", routertest.RawPost(routertest.PathCompletions, chunked, "Host: a", json, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), "400", "bad_framing"},
		{"03 not exactly chunked", routertest.RawPost(routertest.PathCompletions, chunked, "Host: a", json, "Transfer-Encoding: gzip, chunked"), "400", "bad_framing"},
		{"03 identity", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "Transfer-Encoding: identity"), "400", "bad_framing"},
		{"03 chunked on 1.0", strings.Replace(routertest.RawPost(routertest.PathCompletions, chunked, "Host: a", json, "Transfer-Encoding: chunked"),
			"HTTP/1.1", "HTTP/1.0", 1), "400", "bad_framing"},
		{"04 bare line feed", strings.Replace(routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n), "a\r\n", "a\n", 1), "400", "bad_framing"},
		{"04 bare carriage return", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-A: b\rc"), "400", "bad_framing"},
		{"04 folded by a tab", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-A: b\r\n\tc"), "400", "bad_framing"},
		{"04 NUL in a name", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-\x00A: b"), "400", "bad_framing"},
		{"04 folded line", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-A: b\r\n c"), "400", "bad_framing"},
		{"04 NUL", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-A: b\x00"), "400", "bad_framing"},
		{"04 space before colon", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-A : b"), "400", "bad_framing"},
		{"05 no host", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, json, n), "400", "bad_framing"},
		{"05 two hosts", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", "Host: b", json, n), "400", "bad_framing"},
		{"05 other host in the target", routertest.RawPost("http://b"+routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n), "400", "bad_host"},
		{"06 large head", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", json, n, "X-A: "+strings.Repeat("a", 17<<10)), "431", "head_too_large"},
		{"06 many fields", routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, append([]string{"Host: a", json, n}, many...)...), "431", "head_too_large"},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, rest, closed := routertest.RawRequest(t, g.Addr, row.request+secondRequest)
			if !strings.Contains(status, " "+row.status+" ") || !closed {
				t.Errorf("%q, closed %v; want %s and the end of the connection\n%s", status, closed, row.status, rest)
			}
			if strings.Contains(rest, `"object":"list"`) {
				t.Errorf("the second request was served: %s", rest)
			}
			head, body, _ := strings.Cut(rest, "\r\n\r\n")
			if routertest.ErrorOf(t, body); !strings.Contains(head, "X-Pdrouter-Reason: "+row.reason) || !strings.Contains(head, "X-Should-Retry: false") {
				t.Errorf("want reason %s and no retry in\n%s", row.reason, head)
			}
		})
	}
	if n := s.Cluster.Count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
}

// TestFault06HeadIsNotLogged sends heads with credentials that cannot be read: the log has the refusal, and nothing of the head.
func TestFault06HeadIsNotLogged(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	const secret = "a-secret-of-the-client"
	for _, row := range []struct{ name, request string }{
		{"half a head", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + secret + "\r\nX-A: b"},
		{"space before a colon", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization : Bearer " + secret + "\r\n\r\n"},
		{"no colon", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization Bearer " + secret + "\r\n\r\n"},
		{"a control character", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + secret + "\x01\r\n\r\n"},
		{"in the target", "GET /v1/models?key=" + secret + "\x01 HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"in the method", secret + "\x01 /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"two lengths", "POST /v1/messages HTTP/1.1\r\nHost: a\r\nX-Api-Key: " + secret + "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"},
		{"another version", "GET /v1/models HTTP/1.x\r\nHost: a\r\nAuthorization: Bearer " + secret + "\r\n\r\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var log lockedBuffer
			g := routertest.Start(t, s.Config, router.Parts{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			conn := dial(t, g.Addr)
			_, _ = io.WriteString(conn, row.request)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			routertest.Eventually(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "msg=refused") })
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log has the secret:\n%s", log.String())
			}
		})
	}
}

// TestAbsoluteTarget has a client name the host in the target, as those do that believe to talk to a proxy.
func TestAbsoluteTarget(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for target, want := range map[string]string{"http://a/v1/models": "200", "http://a/v1/models?b=c://d/e": "200", "http://a": "404", "http://a/": "404", "/http://a/v1/models": "404"} {
		status, rest, _ := routertest.RawRequest(t, g.Addr, "GET "+target+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		if !strings.Contains(status, " "+want+" ") {
			t.Errorf("%s: %s; want %s\n%s", target, status, want, rest)
		}
	}
}

// TestFault05HostDecidesNothing sends the same request to hosts of all kinds: who calls and where it goes is the same.
func TestFault05HostDecidesNothing(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{Clients: routertest.Clients{}})
	for i, host := range []string{"a", "localhost", "169.254.169.254", "decode-0", strings.TrimPrefix(s.Decode[0].Server.URL, "http://"), "[::1]:1"} {
		head := []string{"Host: " + host, "Content-Type: application/json", "Connection: close", fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody))}
		if status, _, _ := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, head...)); !strings.Contains(status, " 401 ") {
			t.Errorf("host %s without credentials: %q", host, status)
		}
		status, rest, _ := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, append(head, "Authorization: Bearer good")...))
		if !strings.Contains(status, " 200 ") || s.Cluster.Count("decode-0", "") != i+1 {
			t.Errorf("host %s: %q\n%s", host, status, rest)
		}
		if sum := g.Summary(i + 1); sum.Subject != "someone" || sum.Decode != "decode-0" {
			t.Errorf("host %s: %+v", host, sum)
		}
	}
}

// TestFault06EndlessHead has a client send a head without an end: it is read no further than the limit.
func TestFault06EndlessHead(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for name, line := range map[string]string{"06 one field": strings.Repeat("a", 1<<10), "06 many fields": strings.Repeat("X-A: b\r\n", 128)} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, g.Addr)
			_, _ = io.WriteString(conn, "GET /v1/models HTTP/1.1\r\nHost: a\r\nX-B: ")
			sent := 0
			for ; sent < 64<<20; sent += len(line) {
				if _, err := io.WriteString(conn, line); err != nil {
					break
				}
			}
			if sent >= 64<<20 { // more than the sockets on the way hold
				t.Errorf("%d bytes were taken", sent)
			}
		})
	}
}

// TestFault07BodyTooLarge sends bodies over the limit in every framing.
func TestFault07BodyTooLarge(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Limits.Body = 1000
	g := routertest.Start(t, s.Config, router.Parts{})
	big := `{"model":"tiny","prompt":"` + strings.Repeat("a", 2000) + `"}`
	json := "Content-Type: application/json"
	for _, row := range []struct{ name, request string }{
		{"07 length", routertest.RawPost(routertest.PathCompletions, big, "Host: a", json, fmt.Sprintf("Content-Length: %d", len(big)))},
		{"07 length, no body yet", routertest.RawPost(routertest.PathCompletions, "", "Host: a", json, fmt.Sprintf("Content-Length: %d", 1<<40))},
		{"07 chunked, without an end", routertest.RawPost(routertest.PathCompletions, fmt.Sprintf("%x\r\n%s\r\n", len(big), big), "Host: a", json, "Transfer-Encoding: chunked")},
		{"07 one chunk, without an end", routertest.RawPost(routertest.PathCompletions, fmt.Sprintf("%x\r\n%s", 1<<30, big), "Host: a", json, "Transfer-Encoding: chunked")},
		{"07 chunked", routertest.RawPost(routertest.PathCompletions, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big), "Host: a", json, "Transfer-Encoding: chunked")},
		{"07 expect", routertest.RawPost(routertest.PathCompletions, "", "Host: a", json, fmt.Sprintf("Content-Length: %d", len(big)), "Expect: 100-continue")},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, rest, closed := routertest.RawRequest(t, g.Addr, row.request)
			if !strings.Contains(status, " 413 ") || !closed {
				t.Errorf("%q, closed %v; want 413 and the end of the connection\n%s", status, closed, rest)
			}
			head, body, _ := strings.Cut(rest, "\r\n\r\n")
			if routertest.ErrorOf(t, body).Type != "BadRequestError" || !strings.Contains(head, "X-Pdrouter-Reason: body_too_large") ||
				!strings.Contains(head, "X-Should-Retry: false") || !strings.Contains(head, "X-Request-Id: ") {
				t.Errorf("%s\n%q", head, body)
			}
		})
	}
	if n := s.Cluster.Count("", ""); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
}

// TestFault07ExpectWithinTheLimit: whoever asks first and may send is told so, and served; what then comes is bounded.
func TestFault07ExpectWithinTheLimit(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Limits.Body = 1000
	g := routertest.Start(t, s.Config, router.Parts{})
	status, rest, _ := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", "Content-Type: application/json", "Connection: close",
		fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody)), "Expect: 100-continue"))
	if status != "HTTP/1.1 100 Continue" || !strings.Contains(rest, "HTTP/1.1 200 OK") || !strings.Contains(rest, "tok0 tok1 tok2") {
		t.Errorf("%q\n%s", status, rest)
	}
	n := int(s.Config.Limits.Body) + 1
	_, rest, closed := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, fmt.Sprintf("%x\r\n%s", n, strings.Repeat(" ", n)), "Host: a",
		"Content-Type: application/json", "Transfer-Encoding: chunked", "Expect: 100-continue"))
	if !strings.Contains(rest, "HTTP/1.1 413 ") || !closed {
		t.Errorf("closed %v\n%s", closed, rest)
	}
}

// TestFault08SlowRequests has clients send heads and bodies that do not end: 408 when their time is over, which is not that of
// others, nor of a connection that waits between two requests.
func TestFault08SlowRequests(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Timeouts.Read = 300 * time.Millisecond
	g := routertest.Start(t, s.Config, router.Parts{})
	head := "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
	for _, row := range []struct{ name, sent, more string }{
		{"08 nothing behind the first line", "POST /v1/completions HTTP/1.1\r\n", ""},
		{"08 half a head", head, ""},
		{"08 a head that comes slowly", head, "X-A: b\r\n"},
		{"08 no body", head + "Content-Length: 60\r\n\r\n", ""},
		{"08 a body that comes slowly", head + "Content-Length: 600\r\n\r\n{", " "},
		{"08 chunks that come slowly", head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			conn := dial(t, g.Addr)
			_, _ = io.WriteString(conn, row.sent)
			over := make(chan struct{})
			var got []byte
			go func() {
				defer close(over)
				got, _ = io.ReadAll(conn)
			}()
			kept := dial(t, g.Addr)
			br := bufio.NewReader(kept)
			for n, ended := 0, false; !ended || n < 3; n++ {
				_, _ = io.WriteString(conn, row.more)
				fmt.Fprintf(kept, "%sContent-Length: %d\r\n\r\n%s", head, len(routertest.PlainBody), routertest.PlainBody)
				_ = kept.SetReadDeadline(time.Now().Add(routertest.Patience))
				resp, err := http.ReadResponse(br, nil)
				if err != nil || resp.StatusCode != 200 {
					t.Fatalf("request %d beside it: %v, %v", n, resp, err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				select {
				case <-over:
					ended = true
				case <-time.After(50 * time.Millisecond):
				}
			}
			answer, body, _ := strings.Cut(string(got), "\r\n\r\n")
			if routertest.ErrorOf(t, body); !strings.HasPrefix(answer, "HTTP/1.1 408 ") || !strings.Contains(answer, "X-Pdrouter-Reason: timeout") ||
				!strings.Contains(answer, "Connection: close") {
				t.Errorf("got %s", got)
			}
		})
	}
	for _, q := range s.Cluster.All() {
		if q.Body != routertest.PlainBody {
			t.Errorf("an engine was sent %q", q.Body)
		}
	}
}

// dial connects, and closes the connection behind the test.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(routertest.Patience))
	return conn
}

// TestConnectionCloseIsAList has clients ask for the end of the connection in each way that RFC 9110 allows.
func TestConnectionCloseIsAList(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for field, closes := range map[string]bool{
		"Connection: close": true, "Connection: Close": true, "Connection: TE, close": true, "connection:\tclose ,TE": true,
		"Connection: close\r\nConnection: keep-alive": true, "Connection: keep-alive": false, "Connection: closed": false,
	} {
		for _, stream := range []bool{false, true} {
			body := routertest.PlainBody
			if stream {
				body = strings.Replace(body, "{", `{"stream":true,`, 1)
			}
			first := routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", field,
				fmt.Sprintf("Content-Length: %d", len(body)))
			last := routertest.RawPost(routertest.PathHealth, "", "Host: a", "Connection: close", "Content-Length: 0")
			status, rest, closed := routertest.RawRequest(t, g.Addr, first+last)
			answered := strings.Contains(rest, "HTTP/1.1 405 ") // the second request
			if !strings.Contains(status, " 200 ") || !closed || answered == closes || closes != strings.Contains(strings.SplitN(rest, "\r\n\r\n", 2)[0], "Connection: close") {
				t.Errorf("%q, stream %t: %q, closed %t, the next request answered %t; want the end after the first: %t\n%s",
					field, stream, status, closed, answered, closes, rest)
			}
		}
	}
}
