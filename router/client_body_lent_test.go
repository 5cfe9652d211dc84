package router_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// A leg that is still being sent when its client has left is sent as that client wrote it, though the server's place for bodies
// has the next client's by then.
func TestLentBodyOutlivesItsClient(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s, parts := routertest.NewPoolIn(t, n, connector.NamePush, 1, 1)
		const size = 8 * routertest.ConnBuffer
		reading, release := make(chan struct{}), make(chan struct{})
		var mu sync.Mutex
		var got []string // prompts of prefill's legs
		slow := s.Cluster.Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
			s.Prefill[0].Serve(w, r)
		}))
		t.Cleanup(func() { slow.CloseClientConnections(); slow.Close() })
		s.Config.Models[0].Prefill[0].URL = slow.URL
		g := routertest.Start(t, s.Config, parts)
		g.Post("/v1/completions", `{"model":"tiny","prompt":"warm"}`)

		begin := func(letter string) func() {
			body := `{"model":"tiny","prompt":"` + strings.Repeat(letter, size) + `"}`
			c := g.Dial(t)
			go io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
				strconv.Itoa(len(body))+"\r\n\r\n"+body)
			<-reading
			return func() { c.Close() }
		}
		leave := begin("a")
		leave()
		if sum := g.Summary(2); sum.Outcome != dispatch.ClientLeft {
			t.Fatalf("got %s, want that the client left", sum.Outcome)
		}
		for range 4 { // where the server keeps its places is not for us to say
			defer begin("b")()
		}
		close(release)
		g.WaitIdle()
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
