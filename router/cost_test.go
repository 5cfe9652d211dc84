package router

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// cannedEngine answers every leg at once with bytes made beforehand, and allocates nothing while it does: what is
// counted beside it is the router's.
type cannedEngine struct{ prefill, whole, stream, other []byte }

func newCannedEngine(tb testing.TB) (url string) {
	answer := func(ctype, body string) []byte {
		return []byte("HTTP/1.1 200 OK\r\nContent-Type: " + ctype + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	}
	event := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	e := cannedEngine{
		prefill: answer("application/json", `{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7]],"remote_engine_id":"7d6c0000-0000-4000-8000-000000000001","remote_request_id":"chatcmpl-1-0","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`),
		whole:   answer("application/json", `{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"`+strings.Repeat(" word", 16)+`"},"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":216,"completion_tokens":16},"kv_transfer_params":null}`),
		stream:  answer("text/event-stream; charset=utf-8", strings.Repeat(event, 16)+"data: [DONE]\n\n"),
		other:   answer("application/json", `{}`),
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go e.serve(c)
		}
	}()
	return "http://" + ln.Addr().String()
}

func (e *cannedEngine) serve(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 64<<10)
	for {
		head, size, err := readCanned(c, buf)
		if err != nil {
			return
		}
		body := buf[head:size]
		out := e.other
		switch {
		case bytes.Contains(body, []byte(`"do_remote_decode":true`)):
			out = e.prefill
		case bytes.Contains(body, []byte(`"stream":true`)):
			out = e.stream
		case bytes.Contains(body, []byte(`"do_remote_prefill":true`)):
			out = e.whole
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// readCanned reads one message into buf, and returns the length of its head and of the whole. A message in chunks
// ends with its last chunk.
func readCanned(c net.Conn, buf []byte) (head, size int, err error) {
	n := 0
	for {
		more, err := c.Read(buf[n:])
		if err != nil {
			return 0, 0, err
		}
		n += more
		if head == 0 {
			i := bytes.Index(buf[:n], []byte("\r\n\r\n"))
			if i < 0 {
				continue
			}
			head, size = i+4, i+4
			if _, after, ok := bytes.Cut(buf[:head], []byte("Content-Length: ")); ok {
				length := 0
				for _, d := range after[:bytes.IndexByte(after, '\r')] {
					length = length*10 + int(d-'0')
				}
				size = head + length
			} else if bytes.Contains(buf[:head], []byte("chunked")) {
				size = len(buf) + 1
			}
		}
		if size > len(buf) && bytes.HasSuffix(buf[:n], []byte("\r\n0\r\n\r\n")) || n >= size {
			return head, n, nil
		}
	}
}

// costClient is one connection to a router in front of two canned engines, with its log on, and returns what does one request.
func costClient(tb testing.TB, connector string, stream bool) func() {
	cfg := Config{Models: []Model{{Name: "m", Connector: connector,
		Prefill: []Engine{{Name: "prefill-0", URL: newCannedEngine(tb)}},
		Decode:  []Engine{{Name: "decode-0", URL: newCannedEngine(tb)}},
	}}}
	g := start(tb, cfg, Parts{Log: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	body := `{"model":"m","stream":` + strconv.FormatBool(stream) + `,"max_tokens":16,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 180) + `"}]}`
	request := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	buf := make([]byte, 64<<10)
	ask := func() []byte {
		if _, err := c.Write(request); err != nil {
			tb.Fatal(err)
		}
		_, n, err := readCanned(c, buf)
		if err != nil {
			tb.Fatal(err)
		}
		return buf[:n]
	}
	var last []byte
	eventually(tb, "a request is split", func() bool { // the pair has to be warm
		last = ask()
		return bytes.Contains(last, []byte("X-Pdrouter-Reason: split"))
	})
	return func() {
		if got := ask(); !bytes.HasPrefix(got, []byte("HTTP/1.1 200")) || bytes.Count(got, []byte(" word")) != 16 {
			tb.Fatalf("got %s", got)
		}
	}
}

var costs = []struct {
	name      string
	connector string
	stream    bool
	allocs    float64 // per two-leg request, with its log line
	raced     float64 // the same under the race detector, which has pools forget some of what they keep
}{
	{"pull", ConnectorPull, false, 28, 49},
	{"pull stream", ConnectorPull, true, 31, 57},
	{"push", ConnectorPush, false, 30, 51},
}

// Allocations are most of what the garbage collector costs. A change that needs more of them says so here.
func TestAllocationsPerRequest(t *testing.T) {
	for _, c := range costs {
		t.Run(c.name, func(t *testing.T) {
			ask := costClient(t, c.connector, c.stream)
			for range 100 {
				ask()
			}
			want := c.allocs
			if raceDetector() {
				want = c.raced
			}
			got := testing.AllocsPerRun(300, ask)
			for n := 1; n < 5 && got > want; n++ { // what runs beside it can only add
				got = min(got, testing.AllocsPerRun(300, ask))
			}
			if got > want {
				t.Errorf("a request makes %.0f allocations, want at most %.0f", got, want)
			} else {
				t.Logf("%.0f allocations a request, at most %.0f", got, want)
			}
		})
	}
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func BenchmarkRequest(b *testing.B) {
	for _, c := range costs {
		b.Run(c.name, func(b *testing.B) {
			ask := costClient(b, c.connector, c.stream)
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}
