package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

func TestBadHeads(t *testing.T) {
	tests := []struct{ name, answer string }{
		{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"},
		{"length list", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n{}"},
		{"length sign", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}"},
		{"length overflow", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}"},
		{"empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n{}"},
		{"two codings", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"other coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		{"chunks in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"no length", "HTTP/1.1 200 OK\r\n\r\n{}"},
		{"HTTP/2.0", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n\r\n"},
		{"status", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"},
		{"status word", "HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n"},
		{"status 999", "HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n"},
		{"bare line feed", "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n"},
		{"folded", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n x: y\r\n\r\n"},
		{"space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n"},
		{"NUL", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \x00\r\n\r\n"},
		{"no colon", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX\r\n\r\n"},
		{"switching", "HTTP/1.1 101 Switching Protocols\r\n\r\n"},
		{"interim for ever", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20)},
		{"many fields", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + strings.Repeat("X: y\r\n", 300) + "\r\n"},
		{"huge", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", MaxHead) + "\r\n\r\n"},
		{"huge without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 2*MaxHead)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newFakeEngine(t, Config{}, say(tt.answer))
			_, _, err := ask(patience(t), e.Client, post("{}"))
			wantPhase(t, err, PhaseHead, ErrBadResponse)
			if e.requests.Load() != 1 || len(e.idle.conns) != 0 {
				t.Errorf("%d requests, %d idle connections", e.requests.Load(), len(e.idle.conns))
			}
		})
	}
}

func TestInterim(t *testing.T) {
	e := newFakeEngine(t, Config{}, say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+okAnswer))
	for range 2 {
		if status, got, err := ask(patience(t), e.Client, post("{}")); status != 200 || got != "{}" || err != nil {
			t.Errorf("got %d %q, %v", status, got, err)
		}
	}
}

var wholeAnswers = []struct{ name, answer, body string }{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world", "hello world"},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n06;a=\"b\"\r\n world\r\n0\r\n\r\n", "hello world"},
	{"trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\nB\r\nhello world\r\n0\r\nX: y\r\nZ: \r\n\r\n", "hello world"},
	{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "ab"},
}

// pipeEngine is a Client of one connection whose peer reads one request, writes the pieces and closes.
func pipeEngine(t *testing.T, pieces func(yield func([]byte) bool)) *Client {
	t.Helper()
	u, err := newClient("http://fake", Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
				return
			}
			for p := range pieces {
				if _, err := far.Write(p); err != nil {
					return
				}
			}
		}()
		return near, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// TestSplit writes each answer in pieces of every size, and reads it in pieces of every size.
func TestSplit(t *testing.T) {
	for _, tt := range wholeAnswers {
		for size := 1; size <= len(tt.answer); size++ {
			u := pipeEngine(t, func(yield func([]byte) bool) {
				for rest := tt.answer; rest != ""; {
					n := min(size, len(rest))
					if !yield([]byte(rest[:n])) {
						return
					}
					rest = rest[n:]
				}
			})
			r, err := u.Do(patience(t), &Request{Path: "/"})
			if err != nil {
				t.Fatalf("%s in pieces of %d: %v", tt.name, size, err)
			}
			var got []byte
			buf := make([]byte, size%7+1)
			for err == nil {
				var n int
				n, err = r.Read(buf)
				got = append(got, buf[:n]...)
			}
			if string(got) != tt.body || !errors.Is(err, io.EOF) {
				t.Errorf("%s in pieces of %d: got %q, %v", tt.name, size, got, err)
			}
			r.Close()
			if len(u.idle.conns) != 1 {
				t.Errorf("%s in pieces of %d: the connection was not kept", tt.name, size)
			}
		}
	}
}

// TestCut ends the connection behind every byte of each answer: only the last one is an answer's end.
func TestCut(t *testing.T) {
	for _, tt := range wholeAnswers {
		for n := range len(tt.answer) {
			u := pipeEngine(t, func(yield func([]byte) bool) { yield([]byte(tt.answer[:n])) })
			_, got, err := ask(patience(t), u, &Request{Path: "/"})
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s cut at %d: got %q, %v", tt.name, n, got, err)
			}
			if len(u.idle.conns) != 0 {
				t.Errorf("%s cut at %d: the connection was kept", tt.name, n)
			}
		}
	}
}

func TestBadChunks(t *testing.T) {
	for _, body := range []string{"x\r\n", "\r\n", "-1\r\n", "+2\r\nab\r\n", "0x2\r\nab\r\n", "2 2\r\n", "2\nab\r\n0\r\n\r\n", "2\r\nabc\r\n0\r\n\r\n",
		"2\r\nab\n0\r\n\r\n", "fffffffffffffffff\r\n", "2;" + strings.Repeat("x", 300) + "\r\n", "2;\x01\r\nab\r\n0\r\n\r\n",
		"0\r\nbad trailer\r\n\r\n", "0\r\nX : y\r\n\r\n", "0\r\n" + strings.Repeat("X: yyyyyyyyyyyyyyyyyyyyyyyyy\r\n", 4000) + "\r\n", strings.Repeat("1", 9000)} {
		u := pipeEngine(t, func(yield func([]byte) bool) {
			yield([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body))
		})
		_, got, err := ask(patience(t), u, &Request{Path: "/"})
		if !errors.Is(err, ErrBadResponse) {
			t.Errorf("%.40q: got %q, %v", body, got, err)
		}
		if len(u.idle.conns) != 0 {
			t.Errorf("%.40q: the connection was kept", body)
		}
	}
}

func TestAnswerSize(t *testing.T) {
	for _, tt := range wholeAnswers[:2] {
		e := newFakeEngine(t, Config{}, say(tt.answer))
		for max, want := range map[int]error{10: ErrTooLarge, 11: nil} {
			r, err := e.Do(patience(t), post("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = r.ReadAll(nil, max); !errors.Is(err, want) {
				t.Errorf("%s, at most %d bytes: got %v, want %v", tt.name, max, err, want)
			}
			r.Close()
		}
	}
}

// FuzzAnswer compares what is accepted with net/http: any difference would be a way to poison a connection.
func FuzzAnswer(f *testing.F) {
	for _, a := range wholeAnswers {
		f.Add([]byte(a.answer))
	}
	f.Add([]byte(okAnswer))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &conn{nc: &replay{Reader: bytes.NewReader(in)}, bufs: new(sync.Pool)}
		h, err := c.readHead()
		if err != nil {
			return
		}
		u := &Client{}
		u.idle.max = 1
		r := &Response{up: u, c: c, ctx: context.Background(), stop: func() bool { return true }}
		r.setHead(h)
		got, err := r.ReadAll(nil, 1<<20)
		if err != nil {
			return
		}
		br := bufio.NewReader(bytes.NewReader(in))
		var want *http.Response
		for {
			if want, err = http.ReadResponse(br, nil); err != nil {
				t.Fatalf("accepted a head that net/http does not: %v", err)
			}
			if want.StatusCode >= 200 {
				break
			}
		}
		body, err := io.ReadAll(want.Body)
		if err != nil || want.StatusCode != r.Status || !bytes.Equal(body, got) {
			t.Errorf("got %d %q, net/http says %d %q %v", r.Status, got, want.StatusCode, body, err)
		}
		u.Close()
	})
}

// replay is a connection that only reads, a few bytes at a time.
type replay struct {
	net.Conn
	*bytes.Reader
}

func (r *replay) Read(p []byte) (int, error)  { return r.Reader.Read(p[:min(len(p), 64)]) }
func (r *replay) Write(p []byte) (int, error) { return len(p), nil }
func (r *replay) Close() error                { return nil }
