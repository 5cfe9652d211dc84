package router_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestLegGoesOnWithoutItsRequest has the client of a request leave, or its time end, while its decode leg waits for the engine: the request
// has its outcome at once, and the leg goes on.
func TestLegGoesOnWithoutItsRequest(t *testing.T) {
	for _, how := range []string{"its client leaves", "its time ends"} {
		t.Run(how, func(t *testing.T) {
			var hold atomic.Bool
			held, released := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(released) })
			defer release()
			cfg := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePull,
				Prefill: []config.Engine{{Name: "prefill-0", URL: newCannedEngine(t)}},
				Decode: []config.Engine{{Name: "decode-0", URL: newCannedDecode(t, func() {
					if hold.CompareAndSwap(true, false) {
						close(held)
						<-released
					}
				})}},
			}}}
			g := routertest.Start(t, cfg, router.Parts{})
			body := `{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 180) + `"}]}`
			routertest.Eventually(t, "a request is split", func() bool {
				return g.Post(routertest.PathChat, body).Header.Get("X-Pdrouter-Reason") == "split"
			})
			routertest.Eventually(t, "the pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
			g.WaitIdle()
			up := g.Router.Debug().Engine("decode-0").Upstream()
			var used net.Conn
			routertest.Eventually(t, "a connection to decode is idle", func() bool { // it is put back after the request is counted
				idle := up.Idle()
				if len(idle) == 0 {
					return false
				}
				used = idle[len(idle)-1]
				return true
			})
			g.Mu.Lock()
			done := len(g.Summaries)
			g.Mu.Unlock()
			want := dispatch.ClientLeft
			if how == "its time ends" {
				want, cfg.Timeouts.RequestTotal = dispatch.FailedBefore, 3*time.Second // long enough for its decode leg to begin
				if err := g.Router.Apply(cfg, g.Parts); err != nil {
					t.Fatal(err)
				}
			}
			hold.Store(true)
			conn, err := net.Dial("tcp", g.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, routertest.RawPost(routertest.PathChat, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
			<-held
			if how == "its client leaves" {
				conn.Close()
			}
			if sum := g.Summary(done + 1); sum.Outcome != want {
				t.Errorf("summary %+v, want it %s", sum, want)
			}
			if g.Router.Debug().Running() != 1 {
				t.Error("no leg runs on")
			}
			release()
			g.WaitIdle()
			routertest.Eventually(t, "the leg has read its answer: its connection is idle again", func() bool {
				return slices.Contains(up.Idle(), used)
			})
		})
	}
}
