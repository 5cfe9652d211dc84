package router

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A body that goes without its long stretches is, once they are put back, the one that has them copied.
func TestGapsMakeTheSameBody(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", shortest/16)
	for _, raw := range []string{
		`{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`,
		`{"stream":true,"messages":"` + long + `","max_tokens":9,"kv_transfer_params":{"a":"` + long + `"},"user":"` + long + `"}`,
		`{"max_tokens":9,"stream":true,"x":"` + long + long + `"}`,
		strings.Repeat(" ", shortest) + `{"max_tokens":9}` + strings.Repeat("\n", shortest),
		strings.Repeat(" ", shortest) + `{"request_id":"` + long + `"}`,
		`{"x":"` + long[1:] + `"}`,
		`{"x":"` + long[:shortest/2] + `"}`,
	} {
		b, e := parseBody(shapeCompletions, []byte(raw), bodyLimits{})
		if e != nil {
			t.Fatalf("%.60s: %v", raw, e)
		}
		for _, l := range []leg{legDecode, legPrefill, legTwin} {
			var g gaps
			joined := b.leg([]byte("x"), &g, l, "id", []byte(kvJSON))
			want := b.leg([]byte("x"), nil, l, "id", []byte(kvJSON))
			got := bytes.Join(g.apart(nil, joined), nil)
			if !bytes.Equal(got, want) || len(joined)+g.size() != len(want) {
				t.Errorf("leg %d of %.60s…: %d bytes and %d missing, together %.100q; want %d, %.100q", l, raw, len(joined), g.size(), got, len(want), want)
			}
			if room := 2 * shortest; len(joined) > room {
				t.Errorf("leg %d of %.60s…: %d bytes were copied, want at most %d", l, raw, len(joined), room)
			}
		}
	}
}

// A leg that is still being sent when its client has left is sent as that client wrote it, though the server's place for bodies
// has the next client's by then.
func TestLentBodyOutlivesItsClient(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, ConnectorPush, 1, 1)
		const size = 8 * memRoom
		reading, release := make(chan struct{}), make(chan struct{})
		var mu sync.Mutex
		var got []string // prompts of prefill's legs
		slow := s.c.server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > size {
				reading <- struct{}{}
				<-release
				raw, _ := io.ReadAll(r.Body)
				_, prompt, _ := strings.Cut(string(raw), `"prompt":"`)
				prompt, _, _ = strings.Cut(prompt, `"`)
				mu.Lock()
				got = append(got, prompt)
				mu.Unlock()
				r.Body = io.NopCloser(bytes.NewReader(raw))
			}
			s.p[0].serve(w, r)
		}))
		t.Cleanup(func() { slow.CloseClientConnections(); slow.Close() })
		s.cfg.Models[0].Prefill[0].URL = slow.URL
		g := start(t, s.cfg, parts)
		g.post("/v1/completions", `{"model":"tiny","prompt":"warm"}`)

		begin := func(letter string) func() {
			body := `{"model":"tiny","prompt":"` + strings.Repeat(letter, size) + `"}`
			c := g.dial(t)
			go io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
				strconv.Itoa(len(body))+"\r\n\r\n"+body)
			<-reading
			return func() { c.Close() }
		}
		leave := begin("a")
		leave()
		if sum := g.last(2); sum.Outcome != ClientLeft {
			t.Fatalf("got %s, want that the client left", sum.Outcome)
		}
		for range 4 { // where the server keeps its places is not for us to say
			defer begin("b")()
		}
		close(release)
		g.settled()
		mu.Lock()
		defer mu.Unlock()
		ofFirst := 0
		for _, p := range got {
			if strings.Trim(p, "a") != "" && strings.Trim(p, "b") != "" || len(p) != size {
				t.Errorf("prefill was sent %d bytes that no client wrote: %.20q…", len(p), p)
			}
			if strings.HasPrefix(p, "a") {
				ofFirst++
			}
		}
		if ofFirst != 1 || len(got) != 5 {
			t.Errorf("prefill was sent %d prompts, of them %d of the client that left; want 5 and 1", len(got), ofFirst)
		}
	})
}
