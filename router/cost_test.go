package router_test

import (
	"bytes"
	"io"
	"log/slog"
	"math"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/racetest"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// cannedEngine answers every leg at once with bytes made beforehand, and allocates nothing while it does: what is
// counted beside it is the router's.
type cannedEngine struct {
	prefill, plane, whole, stream, other []byte
	begin                                func() // is called before decode answers
}

// namedTransfer is what stands in the answer of connector kvplane for the transfer's id.
const namedTransfer = "00000000000000000000000000000000"

func newCannedEngine(tb testing.TB) (url string) { return newCannedDecode(tb, func() {}) }

// newCannedDecode is one that calls begin before it answers a decode leg.
func newCannedDecode(tb testing.TB, begin func()) (url string) {
	answer := func(ctype, body string) []byte {
		return []byte("HTTP/1.1 200 OK\r\nContent-Type: " + ctype + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	}
	event := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	e := cannedEngine{
		begin:   begin,
		plane:   answer("application/json", `{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1},"kv_transfer_params":{"transfer_id":"`+namedTransfer+`"}}`),
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
	buf, named := make([]byte, costRoom), bytes.Clone(e.plane)
	for {
		head, size, err := readCanned(c, buf)
		if err != nil {
			return
		}
		body := buf[head:size]
		out := e.other
		switch {
		case bytes.Contains(body, []byte(`"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`)) && bytes.Contains(body, []byte(`"peer":{`)):
			_, id, _ := bytes.Cut(body, []byte(`"transfer_id":"`))
			out = named
			copy(out[bytes.Index(e.plane, []byte(namedTransfer)):], id[:len(namedTransfer)])
		case bytes.Contains(body, []byte(`"do_remote_decode":true`)):
			out = e.prefill
		case bytes.Contains(body, []byte(`"do_remote_prefill":true`)):
			e.begin()
			out = e.whole
			if bytes.Contains(body, []byte(`"stream":true`)) {
				out = e.stream
			}
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

// costRoom is the most bytes of one message.
const costRoom = 256 << 10

// costClient is one connection to a router in front of two canned engines, with its log on, and returns what does one request
// of size bytes. Decode answers when prefill's leg is over, as it does in service: else what has to be seen to behind
// an answer would be a matter of luck.
func costClient(tb testing.TB, connectorName string, stream bool, size int, by ...fleet.Planner) func() {
	var g *routertest.Gateway
	started := make(chan struct{}) // then there is g
	begin := func() {
		if connectorName == connector.NamePull { // decode is asked behind it
			return
		}
		<-started
		for g.Router.Debug().Engine("prefill-0").InFlight() > 0 {
			time.Sleep(10 * time.Microsecond)
		}
	}
	cfg, parts := config.Config{Models: []config.Model{{Connector: connectorName, Prefill: []config.Engine{{Name: "prefill-0"}}, Decode: []config.Engine{{Name: "decode-0"}}}}}, router.Parts{}
	if connectorName == connector.NameKVPlane {
		s, _, p := routertest.NewPlane(tb.(*testing.T), 1, 1)
		cfg, parts = s.Config, p
	}
	m := &cfg.Models[0]
	m.Name, m.Prefill[0].URL, m.Decode[0].URL = "m", newCannedEngine(tb), newCannedDecode(tb, begin)
	if len(by) > 0 {
		parts.Planner = by[0]
	}
	parts.Log = slog.New(takesLines{slog.NewJSONHandler(io.Discard, nil)}) // it takes lines, as the gateway's own
	g = routertest.Start(tb, cfg, parts)
	close(started)
	c, err := net.Dial("tcp", g.Addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	body := `{"model":"m","stream":` + strconv.FormatBool(stream) + `,"max_tokens":16,"messages":[{"role":"user","content":"`
	body += strings.Repeat("word ", (size-len(body)-4)/5) + `"}]}`
	request := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	buf := make([]byte, costRoom)
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
	routertest.Eventually(tb, "a request is split", func() bool { // the pair has to be warm
		last = ask()
		return bytes.Contains(last, []byte("X-Pdrouter-Reason: split"))
	})
	return func() {
		if got := ask(); !bytes.HasPrefix(got, []byte("HTTP/1.1 200")) || bytes.Count(got, []byte(" word")) != 16 {
			tb.Fatalf("got %s", got)
		}
	}
}

// cost is what one request may make, with its log line: allocations, and their bytes.
type cost struct{ allocs, bytes float64 }

// within reports whether c is at most max.
func (c cost) within(max cost) bool { return c.allocs <= max.allocs && c.bytes <= max.bytes }

// costOf counts what n calls of ask make, for each. Nothing is collected meanwhile, which would empty the pools. What runs beside
// it is counted too, and can only add: so the least of several counts is what is true. (testing.AllocsPerRun counts no bytes.)
func costOf(n int, ask func()) cost {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for range 10 {
		ask()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		ask()
	}
	runtime.ReadMemStats(&after)
	per := func(after, before uint64) float64 { return math.Round(10*float64(after-before)/float64(n)) / 10 }
	return cost{per(after.Mallocs, before.Mallocs), per(after.TotalAlloc, before.TotalAlloc)}
}

// costs are the budgets of requests of two legs. Under the race detector pools forget, by chance, a quarter of what is given
// back to them, so that there a part of what is in pools counts, and one body of 220 KB outweighs all else: raced are the
// budgets there, of allocations alone.
var costs = []struct {
	name      string
	connector string
	stream    bool
	size      int
	most      cost
	raced     float64
}{
	{"pull 1 KB", connector.NamePull, false, 1 << 10, cost{23, 6800}, 60},
	{"pull 220 KB", connector.NamePull, false, 220 << 10, cost{23, 6800}, 60},
	{"pull 1 KB stream", connector.NamePull, true, 1 << 10, cost{26, 6900}, 70},
	{"pull 220 KB stream", connector.NamePull, true, 220 << 10, cost{26, 6900}, 70},
	{"push 1 KB", connector.NamePush, false, 1 << 10, cost{26, 7000}, 60},
	{"push 220 KB", connector.NamePush, false, 220 << 10, cost{27, 7000}, 60},
	{"push 1 KB stream", connector.NamePush, true, 1 << 10, cost{27, 6900}, 70},
	{"push 220 KB stream", connector.NamePush, true, 220 << 10, cost{28, 6900}, 70},
	{"kvplane 1 KB", connector.NameKVPlane, false, 1 << 10, cost{29, 7000}, 60},
	{"kvplane 220 KB", connector.NameKVPlane, false, 220 << 10, cost{30, 7000}, 60},
	{"kvplane 1 KB stream", connector.NameKVPlane, true, 1 << 10, cost{30, 6900}, 70},
	{"kvplane 220 KB stream", connector.NameKVPlane, true, 220 << 10, cost{31, 6900}, 70},
}

// Allocations are most of what the garbage collector costs. A change that needs more of them says so here.
func TestAllocationsPerRequest(t *testing.T) {
	for _, c := range costs {
		t.Run(c.name, func(t *testing.T) {
			ask := costClient(t, c.connector, c.stream, c.size)
			most := c.most
			if racetest.Enabled() {
				most = cost{c.raced, math.Inf(1)}
			}
			n := 100
			if c.size > 1<<10 {
				n = 20
			}
			got := costOf(n, ask)
			for try := 1; try < 20 && !got.within(most); try++ { // on a busy machine the collector empties pools meanwhile: the fewest count
				again := costOf(n, ask)
				got = cost{min(got.allocs, again.allocs), min(got.bytes, again.bytes)}
			}
			if !got.within(most) {
				t.Errorf("a request makes %.1f allocations of %.0f bytes, want at most %.0f of %.0f", got.allocs, got.bytes, most.allocs, most.bytes)
			} else {
				t.Logf("a request makes %.1f allocations of %.0f bytes, at most %.0f of %.0f", got.allocs, got.bytes, most.allocs, most.bytes)
			}
		})
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, c := range costs {
		if c.connector == connector.NameKVPlane {
			continue
		}
		b.Run(c.name, func(b *testing.B) {
			ask := costClient(b, c.connector, c.stream, c.size)
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}

// takesLines takes the lines of requests and does nothing with them.
type takesLines struct{ slog.Handler }

func (takesLines) Line(slog.Level, []byte) bool { return true }
