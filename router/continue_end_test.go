package router_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
)

// goingOn has streams that fail go on from another engine.
func goingOn(t *testing.T) router.Parts {
	t.Helper()
	p := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	return router.Parts{Planner: p}
}

// TestFault53OnlyTheEndIsMissing breaks streams of which the client has every token: it is told how they ended, once, and the
// engine that breaks them is taken out all the same.
func TestFault53OnlyTheEndIsMissing(t *testing.T) {
	head := func(choice string) string {
		return `data: {"id":"c","created":1,"model":"m","choices":[{"index":0,` + choice + "}]}\n\n"
	}
	first := head(`"text":"a","finish_reason":null,"prompt_token_ids":[1,2],"token_ids":[3]`)
	for _, row := range []struct{ name, events string }{
		{"53 the usage was sent", first + head(`"text":"b","finish_reason":"length","token_ids":[4]`) +
			`data: {"id":"c","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}` + "\n\n"},
		{"53 the reason was sent", first + head(`"text":"b","finish_reason":"length","token_ids":[4]`)},
		{"53 the reason comes by itself", first + head(`"text":"b","finish_reason":null,"token_ids":[4]`)},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := rawEngine(t, func(_ int, conn net.Conn) {
				_, _ = io.WriteString(conn, rawStreamHead+rawChunk(row.events))
				_ = conn.Close()
			})
			cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Health: config.Health{Failures: 5, PanicPercent: 100}, Limits: config.Limits{Failures: 1 << 20}}
			g := routertest.Start(t, cfg, goingOn(t))
			for i := range 5 {
				r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"p","max_tokens":2,"stream":true,"temperature":0,"stream_options":{"include_usage":true}}`)
				if r.Err != nil || strings.Count(r.Body, `"usage":{`) != 1 || strings.Count(r.Body, `"finish_reason":"length"`) != 1 ||
					strings.Count(r.Body, "[DONE]") != 1 {
					t.Fatalf("stream %d: end %v: %s", i, r.Err, r.Body)
				}
				if sum := g.Summary(i + 1); sum.Outcome != dispatch.Completed || sum.OutputTokens != 2 || sum.PromptTokens != 2 {
					t.Errorf("%+v", sum)
				}
			}
			if n := g.Router.Stats().Engines[0].Ejections[health.Streams.String()]; n == 0 {
				t.Error("five streams in a row broke, and the engine was not taken out")
			}
		})
	}
}

// TestFault53KeepAlive has the engine that is to go on be silent before it does: the client hears comments meanwhile. One that
// leaves then leaves nothing behind.
func TestFault53KeepAlive(t *testing.T) {
	silence := make(chan struct{})
	teller := func(dies int, waits bool) string {
		f := &fakeTeller{dies: dies}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if waits && r.Method == http.MethodPost {
				raw, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(strings.NewReader(string(raw)))
				select {
				case <-silence:
				case <-r.Context().Done():
					return
				}
			}
			f.serve(w, r)
		}))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		return srv.URL
	}
	parts := goingOn(t)
	parts.Planner = inOrder{parts.Planner}
	every := 20 * time.Millisecond
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "a", URL: teller(3, false)}, {Name: "b", URL: teller(-1, true)}}}}}
	cfg.Timeouts.KeepAlive = &every
	g := routertest.Start(t, cfg, parts)
	const body = `{"model":"tiny","prompt":"x","max_tokens":9,"temperature":0,"stream":true}`
	for _, leaves := range []bool{true, false} {
		conn, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", "Connection: close",
			fmt.Sprintf("Content-Length: %d", len(body))))
		var got strings.Builder
		buf := make([]byte, 4096)
		for strings.Count(got.String(), router.KeepAliveEvent) < 2 {
			n, err := conn.Read(buf)
			if got.Write(buf[:n]); err != nil {
				t.Fatalf("%v behind %q", err, got.String())
			}
		}
		if leaves {
			_ = conn.Close()
			g.WaitIdle()
			routertest.Eventually(t, "the leg that was asked ends", func() bool { return g.Router.Stats().Engines[1].InFlight == 0 })
			continue
		}
		close(silence)
		rest, _ := io.ReadAll(conn)
		got.Write(rest)
		_ = conn.Close()
		if strings.Count(got.String(), "[DONE]") != 1 {
			t.Errorf("the stream is %q", got.String())
		}
		if sum := g.Summary(2); sum.Continued != 1 || sum.Outcome != dispatch.Completed {
			t.Errorf("%+v", sum)
		}
	}
}

// inOrder chooses the first engine that may be chosen.
type inOrder struct{ fleet.Planner }

func (inOrder) Choose(q policies.Request, f policies.Fleet, d policies.Draw) policies.Choice {
	return routertest.FirstUsable{}.Choose(q, f, d)
}

func (p inOrder) AfterFailure(model string) string {
	return p.Planner.(interface{ AfterFailure(model string) string }).AfterFailure(model)
}
