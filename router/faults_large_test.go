package router_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/edge"
	"pdrouter/router/fleet"
	"pdrouter/router/upstream"
)

// countingLimiter notes what requests reserve and what they are charged.
type countingLimiter struct {
	mu                sync.Mutex
	reserved, charged []int
}

func (l *countingLimiter) Acquire(_ auth.Principal, expected int) (edge.Lease, edge.Allowance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved = append(l.reserved, expected)
	return l, edge.Allowance{}
}

func (l *countingLimiter) Done(tokens int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charged = append(l.charged, tokens)
}

// last is what the last request was charged; -1 is all that it has reserved.
func (l *countingLimiter) last() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.charged[len(l.charged)-1]
}

// TestFault59AnswerTooLarge has an engine's answer exceed a bound of the gateway's own, before the client has a byte: nobody else is
// asked, nothing counts against the engine or the budget of retries, the caller is charged, and no blocks stay held.
func TestFault59AnswerTooLarge(t *testing.T) {
	const bound = 64 << 10
	big := []routertest.Fault{{Leg: "decode", Do: routertest.DoBigToken, N: 2 * bound}, {Leg: "alone", Do: routertest.DoBigToken, N: 2 * bound}}
	for _, row := range []struct {
		name, connector, body, says string
		faults                      map[string][]routertest.Fault
		parts                       bool
	}{
		{"none", connector.NameNone, routertest.PlainBody, "limits.answer", map[string][]routertest.Fault{"decode-0": big}, false},
		{"none, streamed", connector.NameNone, routertest.StreamBody, "limits.event", map[string][]routertest.Fault{"decode-0": big}, false},
		{"push", connector.NamePush, routertest.PlainBody, "limits.answer", map[string][]routertest.Fault{"decode-0": big}, false},
		{"push, streamed", connector.NamePush, routertest.StreamBody, "limits.event", map[string][]routertest.Fault{"decode-0": big}, false},
		{"pull", connector.NamePull, routertest.PlainBody, "limits.answer", map[string][]routertest.Fault{"decode-0": big}, false},
		{"pull, streamed", connector.NamePull, routertest.StreamBody, "limits.event", map[string][]routertest.Fault{"decode-0": big}, false},
		{"pull, prefill", connector.NamePull, routertest.StreamBody, "limits.answer", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoBigToken, N: 2 * bound}}}, false},
		{"kvplane", connector.NameKVPlane, routertest.PlainBody, "limits.answer", map[string][]routertest.Fault{"decode-0": big}, false},
		{"kvplane, streamed", connector.NameKVPlane, routertest.StreamBody, "limits.event", map[string][]routertest.Fault{"decode-0": big}, false},
		{"several choices", connector.NamePull, strings.Replace(routertest.PlainBody, `"prompt"`, `"n":2,"prompt"`, 1), "limits.answer", map[string][]routertest.Fault{"decode-0": big}, true},
		{"several choices, streamed", connector.NamePull, strings.Replace(routertest.StreamBody, `"prompt"`, `"n":2,"prompt"`, 1), "limits.event", map[string][]routertest.Fault{"decode-0": big}, true},
		{"several choices, one of them", connector.NamePush, strings.Replace(routertest.StreamBody, `"prompt"`, `"n":2,"prompt"`, 1), "limits.event",
			map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 2, Do: routertest.DoBigToken, N: 2 * bound}}}, true},
	} {
		t.Run("59 "+row.name, func(t *testing.T) {
			s, parts := routertest.NewPool(t, row.connector, 1, 2, nil), router.Parts{}
			if row.connector == connector.NameKVPlane {
				s, _, parts = routertest.NewPlane(t, 1, 2)
			}
			limits := new(countingLimiter)
			parts.Planner, parts.Limiter = routertest.FirstUsable{}, limits
			s.Config.Limits.Answer, s.Config.Limits.Event, s.Config.Limits.MaxParallelChoices = bound, bound, 8
			s.Config.Health.Failures = 1
			g := routertest.Start(t, s.Config, parts)
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			s.SetFaults(row.faults)
			before, other := s.Cluster.Count("decode-0", "")+s.Cluster.Count("prefill-0", ""), s.Cluster.Count("decode-1", "")
			r := g.Post(routertest.PathCompletions, row.body)
			e := routertest.ErrorOf(t, r.Body)
			if r.Status != 502 || r.Header.Get("X-Pdrouter-Reason") != "answer_too_large" || r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("Retry-After") != "" {
				t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
			}
			if !strings.Contains(e.Message, row.says) || !strings.Contains(e.Message, fmt.Sprint(bound)) {
				t.Errorf("the message %q does not name %s", e.Message, row.says)
			}
			sum := g.Summary(1)
			if sum.Outcome != dispatch.FailedBefore || sum.Reason != "answer_too_large" || !row.parts && sum.Attempts != 1 {
				t.Errorf("summary %+v", sum)
			}
			if got := limits.last(); got != -1 {
				t.Errorf("the caller was charged %d; want what was reserved, -1", got)
			}
			if retries := g.Router.Stats().Retries[0]; retries.Made != 0 || retries.Refused != 0 {
				t.Errorf("%d retries, %d refused", retries.Made, retries.Refused)
			}
			for _, e := range append(s.Prefill, s.Decode...) {
				if state := g.EngineStats(e.Name).State; state != "up" && state != "unchecked" {
					t.Errorf("%s is %s", e.Name, state)
				}
			}
			g.WaitIdle()
			// Of several choices one that has not begun may leave blocks to be given back by the other engine.
			if n, others := s.Cluster.Count("decode-0", "")+s.Cluster.Count("prefill-0", "")-before, s.Cluster.Count("decode-1", "")-other; !row.parts && (n > 2 || others != 0) {
				t.Errorf("the engines were asked %d times, the other decode engine %d times", n, others)
			}
			if row.name != "pull, prefill" { // which may hold its blocks to the end of its lease, as behind any answer that says nothing of them
				s.CheckNothingHeld(t)
			}
		})
	}
}

// TestFault59EventTooLarge has an event exceed the bound when the client has part of the stream: an error event names the bound, the
// stream is cut, no engine goes on with it, and the caller is charged for what is known.
func TestFault59EventTooLarge(t *testing.T) {
	first := "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[5]}],\"prompt_token_ids\":[1,2,3]}\n\n"
	big := "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"" + strings.Repeat("a", 128<<10) + "\",\"token_ids\":[6]}]}\n\n"
	goesOn := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	for name, planner := range map[string]fleet.Planner{"59 cut": nil, "59 continue": goesOn} {
		t.Run(name, func(t *testing.T) {
			shown := make(chan struct{})
			e := rawEngine(t, func(_ int, conn net.Conn) {
				_, _ = io.WriteString(conn, rawStreamHead+rawChunk(first))
				<-shown
				_, _ = io.WriteString(conn, rawChunk(big))
			})
			limits := new(countingLimiter)
			parts := router.Parts{Limiter: limits, Planner: planner}
			cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Limits: config.Limits{Event: 64 << 10}}
			cfg.Health.Failures = 1
			g := routertest.Start(t, cfg, parts)
			body := strings.Replace(routertest.StreamBody, `"prompt"`, `"temperature":0,"prompt"`, 1)
			req, _ := http.NewRequest(http.MethodPost, g.URL+routertest.PathCompletions, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			resp, err := g.Client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got := make([]byte, 10)
			_, _ = io.ReadFull(resp.Body, got)
			close(shown)
			rest, err := io.ReadAll(resp.Body)
			out := string(got) + string(rest)
			if err == nil || strings.Contains(out, "[DONE]") || strings.Count(out, `{"error"`) != 1 || !strings.Contains(out, "65536 bytes (limits.event)") {
				t.Errorf("end %v: %.1000s", err, out)
			}
			if sum := g.Summary(1); sum.Outcome != dispatch.FailedAfter || sum.Reason != "answer_too_large" || sum.Attempts != 1 {
				t.Errorf("summary %+v", sum)
			}
			if got := limits.last(); got <= 0 {
				t.Errorf("the caller was charged %d", got)
			}
			if state := g.EngineStats("raw").State; state != "up" && state != "unchecked" {
				t.Errorf("the engine is %s", state)
			}
		})
	}
}

// TestFault59HeadTooLarge has the head of an answer be too large: where it says what the client's request has made it say (an answer
// of bytes tells each of its parts there) that is no fault of the engine's.
func TestFault59HeadTooLarge(t *testing.T) {
	e := rawEngine(t, func(_ int, conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nMetadata: "+strings.Repeat("a", upstream.MaxHead)+"\r\n\r\nok")
	})
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}}
	cfg.Health.Failures = 1
	g := routertest.Start(t, cfg, router.Parts{})
	r := g.Post("/v1/embeddings", `{"model":"tiny","input":["a"]}`)
	if m := routertest.ErrorOf(t, r.Body).Message; r.Status != 502 || r.Header.Get("X-Pdrouter-Reason") != "answer_too_large" || !strings.Contains(m, "65536") {
		t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
	}
	if state := g.EngineStats("raw").State; state != "up" && state != "unchecked" {
		t.Errorf("the engine is %s", state)
	}
}

// TestFault59RefusalTooLarge has an engine reject a request in more words than the gateway reads: its status is the answer.
func TestFault59RefusalTooLarge(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(400, `{"error":{"message":"`+strings.Repeat("a", 128<<10)+`"}}`))
	cfg := routertest.AnyFleet(e)
	cfg.Limits.Answer, cfg.Health.Failures = 64<<10, 1
	g := routertest.Start(t, cfg, router.Parts{})
	for _, path := range []string{routertest.PathChat, "/tokenize"} {
		r := g.Post(path, `{"model":"tiny","messages":[{"role":"user","content":"a"}]}`)
		if m := routertest.ErrorOf(t, r.Body).Message; r.Status != 400 || m != "The engine rejected the request." || r.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: status %d, header %v: %.300s", path, r.Status, r.Header, r.Body)
		}
	}
}
