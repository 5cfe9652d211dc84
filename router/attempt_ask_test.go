package router

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
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
			g := start(t, config.Config{Models: []config.Model{{Name: "m", Connector: connector.NamePull,
				Prefill: []config.Engine{{Name: "prefill-0", URL: newCannedEngine(t)}},
				Decode: []config.Engine{{Name: "decode-0", URL: newCannedDecode(t, func() {
					if hold.CompareAndSwap(true, false) {
						close(held)
						<-released
					}
				})}},
			}}}, Parts{})
			body := `{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 180) + `"}]}`
			eventually(t, "a request is split", func() bool {
				return g.post(pathChat, body).Header.Get("X-Pdrouter-Reason") == "split"
			})
			eventually(t, "the pair is known", func() bool { return g.r.Stats().Handshakes.Ready == 1 })
			g.settled()
			up := g.r.Debug().Engine("decode-0").Upstream()
			var used net.Conn
			eventually(t, "a connection to decode is idle", func() bool { // it is put back after the request is counted
				idle := up.Idle()
				if len(idle) == 0 {
					return false
				}
				used = idle[len(idle)-1]
				return true
			})
			g.mu.Lock()
			done := len(g.summaries)
			g.mu.Unlock()
			hold.Store(true)
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, rawPost(pathChat, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
			<-held
			want := report.ClientLeft
			if how == "its client leaves" {
				conn.Close()
			} else {
				want = report.FailedBefore
				g.r.Debug().EndRequests()
			}
			if sum := g.last(done + 1); sum.Outcome != want {
				t.Errorf("summary %+v, want it %s", sum, want)
			}
			if g.r.Debug().Running() != 1 {
				t.Error("no leg runs on")
			}
			release()
			g.settled()
			eventually(t, "the leg has read its answer: its connection is idle again", func() bool {
				return slices.Contains(up.Idle(), used)
			})
		})
	}
}
