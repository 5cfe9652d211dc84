package edge

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"pdrouter/router/reason"
)

// headOf cuts a whole request as a server does.
func headOf(request string) (requestHead, bool) {
	line, rest, ok := strings.Cut(request, "\r\n")
	parts := strings.Split(line, " ")
	end := strings.Index("\r\n"+rest, "\r\n\r\n")
	if !ok || len(parts) != 3 || end < 0 {
		return requestHead{}, false
	}
	return requestHead{Proto: parts[2], URI: []byte(parts[1]), Raw: []byte(rest[:end+2])}, true
}

var heads = []struct {
	name, request string
	reason        reason.Reason
}{
	{"plain", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", reason.None},
	{"chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", reason.None},
	{"HTTP/1.0 without host", "GET / HTTP/1.0\r\n\r\n", reason.None},
	{"same host in the target", "GET http://A:80/x HTTP/1.1\r\nHost: a:80\r\n\r\n", reason.None},
	{"IPv6 host", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", reason.None},
	{"row 1, length and coding", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", reason.BadFraming},
	{"row 1, coding and length", "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", reason.BadFraming},
	{"row 2, two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", reason.BadFraming},
	{"row 2, one length twice", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", reason.BadFraming},
	{"row 2, sign", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n{}", reason.BadFraming},
	{"row 2, list", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2,2\r\n\r\n{}", reason.BadFraming},
	{"row 2, overflow", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551618\r\n\r\n{}", reason.BadFraming},
	{"row 2, hexadecimal", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x2\r\n\r\n{}", reason.BadFraming},
	{"row 2, empty", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n{}", reason.BadFraming},
	{"row 3, gzip", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", reason.BadFraming},
	{"row 3, identity", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", reason.BadFraming},
	{"row 3, twice", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", reason.BadFraming},
	{"row 3, vertical tab", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", reason.BadFraming},
	{"row 3, HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", reason.BadFraming},
	{"row 4, bare line feed", "POST / HTTP/1.1\r\nHost: a\nContent-Length: 2\r\n\r\n{}", reason.BadFraming},
	{"row 4, folded", "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: 2\r\n\r\n{}", reason.BadFraming},
	{"row 4, folded by a tab", "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz: 2\r\n\r\n{}", reason.BadFraming},
	{"row 4, first line folded", "POST / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n", reason.BadFraming},
	{"row 4, NUL", "POST / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", reason.BadFraming},
	{"row 4, bare carriage return", "POST / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 2\r\n\r\n{}", reason.BadFraming},
	{"row 4, space before the colon", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 2\r\n\r\n{}", reason.BadFraming},
	{"row 4, no name", "POST / HTTP/1.1\r\nHost: a\r\n: 2\r\n\r\n", reason.BadFraming},
	{"row 4, no colon", "POST / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", reason.BadFraming},
	{"row 5, no host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", reason.BadHost},
	{"row 5, no field at all", "GET / HTTP/1.1\r\n\r\n", reason.BadHost},
	{"row 5, two hosts", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", reason.BadHost},
	{"row 5, other host in the target", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", reason.BadHost},
	{"row 5, user in the target", "GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n", reason.BadHost},
	{"row 5, path in the host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", reason.BadHost},
	{"row 5, user in the host", "GET / HTTP/1.1\r\nHost: x@a\r\n\r\n", reason.BadHost},
	{"HTTP/0.9", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", reason.BadFraming},
	{"HTTP/2.0", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", reason.BadFraming},
	{"target of another kind", "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", reason.BadFraming},
	{"row 6, bytes", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("y", 16<<10) + "\r\n\r\n", reason.HeadTooLarge},
	{"row 6, fields", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 100) + "\r\n", reason.HeadTooLarge},
	{"row 6, 100 fields are few enough", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 99) + "\r\n", reason.None},
}

func TestCheckFraming(t *testing.T) {
	for _, tt := range heads {
		t.Run(tt.name, func(t *testing.T) {
			h, ok := headOf(tt.request)
			if !ok {
				t.Fatal("the test's request has no head")
			}
			_, herr := checkFraming(h)
			got, status, want := reason.None, 0, map[reason.Reason]int{reason.BadFraming: 400, reason.BadHost: 400, reason.HeadTooLarge: 431}[tt.reason]
			if herr != nil {
				got, status = herr.Reason, herr.Status
				if !herr.Close || !herr.NoRetry {
					t.Error("the connection stays open, or the client is asked to try again")
				}
			}
			if got != tt.reason || status != want {
				t.Errorf("got %d %q, want %d %q", status, got, want, tt.reason)
			}
		})
	}
}

// TestFramingInHandler sends each head over a connection: no handler runs for one that is refused, nor for a request
// sent behind it, whether the server or checkFraming refuses it.
func TestFramingInHandler(t *testing.T) {
	for _, tt := range heads {
		t.Run(tt.name, func(t *testing.T) {
			var served []string
			s := &fasthttp.Server{ReadBufferSize: 32 << 10, Logger: log.New(io.Discard, "", 0), Handler: func(ctx *fasthttp.RequestCtx) {
				h := &ctx.Request.Header
				_, herr := checkFraming(requestHead{Proto: string(h.Protocol()), URI: h.RequestURI(), Raw: h.RawHeaders()})
				if herr != nil {
					ctx.Response.SetStatusCode(herr.Status)
					ctx.SetConnectionClose()
					return
				}
				served = append(served, string(ctx.Path()))
			}}
			ln := fasthttputil.NewInmemoryListener()
			done := make(chan error, 1)
			go func() { done <- s.Serve(ln) }()
			c, err := ln.Dial()
			if err != nil {
				t.Fatal(err)
			}
			go io.WriteString(c, tt.request+"GET /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, r)
			c.Close()
			ln.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
			switch {
			case tt.reason == reason.None && (len(served) == 0 || resp.StatusCode != 200):
				t.Errorf("got %d, served %q", resp.StatusCode, served)
			case tt.reason != reason.None && (len(served) != 0 || resp.StatusCode != 400 && resp.StatusCode != 431):
				t.Errorf("got %d, served %q", resp.StatusCode, served)
			}
		})
	}
}

// FuzzFraming compares with net/http: what is accepted here has the same fields, length and host there.
func FuzzFraming(f *testing.F) {
	for _, h := range heads {
		f.Add([]byte(h.request))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		h, ok := headOf(string(in))
		if !ok {
			return
		}
		framing, e := checkFraming(h)
		if e != nil {
			return
		}
		// Method and target are the server's own business: compare the fields under a plain request line.
		if h.Proto != "HTTP/1.0" && h.Proto != "HTTP/1.1" || h.URI[0] != '/' {
			return
		}
		plain := fmt.Sprintf("POST / %s\r\n%s\r\n", h.Proto, bytes.TrimSuffix(h.Raw, []byte("\r\n")))
		if !strings.HasSuffix(plain, "\r\n\r\n") {
			plain = fmt.Sprintf("POST / %s\r\n%s", h.Proto, h.Raw)
		}
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(plain)))
		if err != nil {
			if strings.Contains(err.Error(), "malformed Host") {
				return
			}
			t.Fatalf("accepted %q, net/http does not: %v", plain, err)
		}
		var length int64
		var host string
		fields := 0
		for line := range strings.SplitSeq(strings.TrimSuffix(string(h.Raw), "\r\n\r\n"), "\r\n") {
			name, value, _ := strings.Cut(line, ":")
			switch value = strings.Trim(value, " \t"); strings.ToLower(name) {
			case "content-length":
				fmt.Sscan(value, &length)
			case "transfer-encoding":
				length = -1
			case "host":
				host = value
			case "":
			default:
				fields++
			}
		}
		if framing.length != length || framing.expects != (req.ProtoAtLeast(1, 1) && strings.EqualFold(req.Header.Get("Expect"), "100-continue")) {
			t.Errorf("%q: the head says %+v of the body", plain, framing)
		}
		if req.ContentLength != length || req.Host != host {
			t.Errorf("%q: net/http has length %d and host %q", plain, req.ContentLength, req.Host)
		}
		n := 0
		for name, v := range req.Header {
			if name != "Content-Length" {
				n += len(v)
			}
		}
		if n > fields {
			t.Errorf("%q: net/http has %d fields, there are %d", plain, n, fields)
		}
	})
}

func BenchmarkFraming(b *testing.B) {
	h, _ := headOf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: OpenAI/Python 1.0\r\nContent-Type: application/json\r\n" +
		"Authorization: Bearer abcdefghijklmnopqrstuvwxyz\r\nX-Stainless-Lang: python\r\nAccept: application/json\r\nContent-Length: 1024\r\n\r\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, herr := checkFraming(h); herr != nil {
			b.Fatal(herr)
		}
	}
}
