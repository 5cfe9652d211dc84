package router_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/openai"
)

// sums are of the last bytes of bodies.
type sums struct {
	last int
	mu   sync.Mutex
	all  []uint32
}

// newSumEngine is an engine that keeps nothing of what it is sent, and notes the sum of each body.
func newSumEngine(t *testing.T, e *sums) (url string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go answerSum(c, e)
		}
	}()
	return "http://" + ln.Addr().String()
}

func answerSum(c net.Conn, e *sums) {
	defer c.Close()
	answer := func(body string) []byte {
		return []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	}
	const said = `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],` +
		`"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1},"kv_transfer_params":`
	prefill, decode := answer(said+`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r",`+
		`"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}`), answer(said+`null}`)
	buf := make([]byte, 64<<10)
	for {
		n, head := 0, -1
		for ; head < 0; head = bytes.Index(buf[:n], []byte("\r\n\r\n")) {
			more, err := c.Read(buf[n : 16<<10])
			if err != nil {
				return
			}
			n += more
		}
		_, after, _ := bytes.Cut(buf[:head+2], []byte("Content-Length: "))
		size := 0
		for _, d := range after[:max(0, bytes.IndexByte(after, '\r'))] {
			size = 10*size + int(d-'0')
		}
		if len(after) == 0 {
			if _, err := c.Write(answer("{}")); err != nil {
				return
			}
			continue
		}
		out, sum, skip := decode, uint32(0), size-e.last
		n = copy(buf, buf[head+4:n])
		for first := true; ; first = false {
			if first && bytes.Contains(buf[:n], []byte(`"do_remote_decode":true`)) {
				out = prefill
			}
			if skip < n {
				sum = crc32.Update(sum, crc32.IEEETable, buf[max(0, skip):n])
			}
			if skip, size = skip-n, size-n; size <= 0 {
				break
			}
			var err error
			if n, err = c.Read(buf); err != nil {
				return
			}
		}
		e.mu.Lock()
		if size == 0 && skip == -e.last {
			e.all = append(e.all, sum)
		}
		e.mu.Unlock()
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// TestChoicesShareTheBody asks for one choice, and for sixteen, of a body of 8 MiB. What the fifteen others and their legs cost beyond
// that is less than a third of the body, and every leg is sent all of it.
func TestChoicesShareTheBody(t *testing.T) {
	const size, choices = 8 << 20, 16
	tail := `"messages":[{"role":"user","content":"` + strings.Repeat("0123456789abcdef", size/16) + `"}]}`
	e := &sums{last: len(tail)}
	cfg := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePush, Prefill: []config.Engine{{Name: "prefill-0", URL: newSumEngine(t, e)}},
		Decode: []config.Engine{{Name: "decode-0", URL: newSumEngine(t, e)}}}}}
	cfg.Limits.N, cfg.Limits.MaxParallelChoices = choices, choices
	g := routertest.Start(t, cfg, router.Parts{Planner: routertest.FirstUsable{}})
	c := g.Dial(t)
	t.Cleanup(func() { c.Close() })
	buf := make([]byte, 64<<10)
	ask := func(n int) string {
		body := `{"model":"m","n":` + strconv.Itoa(n) + `,"max_tokens":16,` + tail
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
		if _, err := io.WriteString(c, body); err != nil {
			t.Fatal(err)
		}
		_, size, err := readCanned(c, buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:size])
	}
	routertest.Eventually(t, "requests are split", func() bool { return strings.Contains(ask(1), "X-Pdrouter-Reason: split") })
	ask(choices) // so that all connections are there
	g.WaitIdle()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	least := func(n int) uint64 {
		most := uint64(1 << 63)
		for range 2 {
			runtime.GC()
			e.mu.Lock()
			e.all = e.all[:0]
			e.mu.Unlock()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			answer := ask(n)
			runtime.ReadMemStats(&after)
			if !strings.HasPrefix(answer, "HTTP/1.1 200") || strings.Count(answer, `"index"`) != n {
				t.Fatalf("got %.300s", answer)
			}
			most = min(most, after.TotalAlloc-before.TotalAlloc)
			g.WaitIdle()
			e.mu.Lock()
			if len(e.all) != 2*n {
				t.Errorf("%d choices: %d legs with all of the body, want %d", n, len(e.all), 2*n)
			}
			for _, sum := range e.all {
				if want := crc32.ChecksumIEEE([]byte(tail)); sum != want {
					t.Errorf("%d choices: a leg was sent other bytes", n)
				}
			}
			e.mu.Unlock()
		}
		return most
	}
	one, all := least(1), least(choices)
	t.Logf("of a body of %.1f MiB: %.1f MiB for one choice, %.1f MiB for %d", float64(size)/(1<<20), float64(one)/(1<<20), float64(all)/(1<<20), choices)
	if all > one+3*size/10 {
		t.Errorf("%d choices of a body of %d bytes cost %d bytes, one costs %d; want at most %d more", choices, size, all, one, 3*size/10)
	}
}

// TestLegsThatOutliveTheirClient has prefill legs fail behind their client's leaving, so that they are sent again, while others use the
// server's places for bodies: every leg is sent what its own client wrote.
func TestLegsThatOutliveTheirClient(t *testing.T) {
	for _, size := range []int{1 << 10, 2 * openai.LentBody} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprint(size, " bytes, choices ", n), func(t *testing.T) {
				routertest.Virtual(t, func(t *testing.T, net *routertest.Network) {
					s, parts := routertest.NewPoolIn(t, net, connector.NamePush, 1, 1)
					g := routertest.Start(t, s.Config, parts)
					g.Post("/v1/completions", `{"model":"tiny","prompt":"warm"}`)
					g.WaitIdle()
					s.Prefill[0].Mu.Lock()
					first := s.Prefill[0].N["prefill"]
					for i := range n {
						s.Prefill[0].Faults = append(s.Prefill[0].Faults, routertest.Fault{Leg: "prefill", Nth: first + 1 + i, Do: routertest.DoResetLate, N: 2000})
					}
					s.Prefill[0].Mu.Unlock()
					before := s.Cluster.Count("", "")
					body := func(letter string, n int) string {
						return fmt.Sprintf(`{"model":"tiny","n":%d,"prompt":%q,"max_tokens":16}`, n, strings.Repeat(letter, size))
					}
					c := g.Dial(t)
					go func() {
						b := body("a", n)
						_, _ = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(b))+"\r\n\r\n"+b)
					}()
					time.Sleep(time.Second)
					c.Close()
					for range 8 {
						if r := g.Post("/v1/completions", body("b", 1)); r.Status != 200 {
							t.Fatalf("status %d: %s", r.Status, r.Body)
						}
					}
					g.WaitIdle()
					legs := map[string]int{}
					for _, q := range s.Cluster.All()[before:] {
						_, prompt, _ := strings.Cut(q.Body, `"prompt":"`)
						prompt, rest, ok := strings.Cut(prompt, `"`)
						if !ok || rest != `,"max_tokens":16}` && rest != `,"max_tokens":1}` || len(prompt) != size || strings.Trim(prompt, prompt[:1]) != "" {
							t.Fatalf("%s was sent %.200s", q.Leg, q.Body)
						}
						legs[q.Leg+" "+prompt[:1]]++
					}
					if legs["prefill a"] != 2*n || legs["decode a"] != n {
						t.Errorf("legs %v; want %d of prefill, %d of decode", legs, 2*n, n)
					}
				})
			})
		}
	}
}

// What is copied of a body for its choices counts as memory for bodies: where it does not fit the request is refused, and holds nothing.
func TestFault07ChoicesMemory(t *testing.T) {
	s, g := newFanPool(t, connector.NamePush, 1, 1, func(c *config.Config) {
		c.Limits.Body, c.Limits.BodyMemory, c.Limits.N, c.Limits.MaxParallelChoices = 600<<10, 1200<<10, 16, 16
	})
	before := s.Cluster.Count("", "")
	for _, row := range []struct {
		size, n, status int
	}{{60 << 10, 1, 200}, {60 << 10, 16, 503}, {20 << 10, 16, 200}, {60 << 10, 2, 200}, {500 << 10, 2, 200}} {
		r := g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","n":%d,"max_tokens":16,"prompt":%q}`, row.n, strings.Repeat("a", row.size)))
		if why := r.Header.Get("X-Pdrouter-Reason"); r.Status != row.status || r.Status == 503 && (why != "body_memory" || s.Cluster.Count("", "") != before) {
			t.Errorf("%d choices of %d bytes: status %d, reason %s; want %d", row.n, row.size, r.Status, why, row.status)
		}
		g.WaitIdle() // which wants that nothing is held
		before = s.Cluster.Count("", "")
	}
}
