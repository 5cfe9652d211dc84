package router_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/limits"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestUnendedMessagesAreCharged has streams of /v1/messages end before the engine has said how long the answer is. It says at the beginning how
// long the prompt is, with an answer of nothing.
func TestUnendedMessagesAreCharged(t *testing.T) {
	const deltas = 200
	for _, row := range []struct {
		name string
		end  string
		want int
	}{
		{"cut", "", 7 + 2 + deltas},
		{"error", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"a\"}}\n\n", 7 + 2 + deltas},
		{"whole", "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"input_tokens\":7,\"output_tokens\":150}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", 7 + 150},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":0}}}\n\n"+
					"event: content_block_start\ndata: {\"type\":\"content_block_start\"}\n\n")
				for range deltas {
					_, _ = io.WriteString(w, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n")
				}
				_, _ = io.WriteString(w, row.end)
			})
			l := newCounted(limits.Limits{Tokens: 1 << 30})
			g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{Limiter: l})
			g.Post(routertest.PathMessages, `{"model":"tiny","max_tokens":1000,"stream":true,"messages":[{"role":"user","content":"a"}]}`)
			if used := l.ended(t, 1); used[0] != row.want {
				t.Errorf("charged %v; want %d", used, row.want)
			}
		})
	}
}

// TestChoicesAreCharged looks at what several choices are charged: each prompt once, though the estimate is larger than what the engines
// count, every choice's tokens, and nothing for an error. The engines count 7 and 3.
func TestChoicesAreCharged(t *testing.T) {
	prompt := strings.Repeat("a", 300)
	for _, row := range []struct {
		name, body string
		faults     []routertest.Fault
		status     int
		want       int
	}{
		{"whole", `"n":4`, nil, 200, 7 + 4*3},
		{"stream", `"n":4,"stream":true`, nil, 200, 7 + 4*3},
		{"failed before an answer", `"n":3`, []routertest.Fault{{Leg: "decode", Nth: 1, Do: routertest.DoError}, {Leg: "decode", Do: routertest.DoSlow, N: 1000}}, 502, 0},
		{"failed before the first event", `"n":3,"stream":true`, []routertest.Fault{{Leg: "decode", Nth: 1, Do: routertest.DoError}, {Leg: "decode", Do: routertest.DoSlow, N: 1000}}, 502, 0},
		{"rejected", `"n":3`, []routertest.Fault{{Leg: "decode", Nth: 2, Do: routertest.DoReject}, {Leg: "decode", Do: routertest.DoSlow, N: 1000}}, 400, 0},
	} {
		for _, connectorName := range []string{connector.NamePull, connector.NamePush} {
			routertest.RunVirtual(t, connectorName+" "+row.name, func(t *testing.T) {
				s := routertest.NewPool(t, connectorName, 1, 1, nil)
				s.Config.Limits.Attempts = 1
				l := newCounted(limits.Limits{Tokens: 1 << 30})
				g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Limiter: l})
				g.WaitWarm()
				s.SetFaults(map[string][]routertest.Fault{"decode-0": row.faults})
				body := fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":16,%s}`, prompt, row.body)
				if r := g.Post(routertest.PathCompletions, body); r.Status != row.status {
					t.Errorf("status %d: %s; want %d", r.Status, r.Body, row.status)
				}
				if used := l.ended(t, 1); !slices.Equal(used, []int{row.want}) {
					t.Errorf("charged %v; want %d", used, row.want)
				}
			})
		}
	}
	routertest.RunVirtual(t, "prompts", func(t *testing.T) {
		s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
		l := newCounted(limits.Limits{Tokens: 1 << 30})
		g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Limiter: l})
		g.WaitWarm()
		g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":[%q,"b"],"n":2,"max_tokens":16}`, prompt))
		if used := l.ended(t, 1); used[0] != 2*7+4*3 {
			t.Errorf("charged %v; want %d", used, 2*7+4*3)
		}
	})
	routertest.RunVirtual(t, "client leaves", func(t *testing.T) {
		s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
		l := newCounted(limits.Limits{Tokens: 1 << 30})
		g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Limiter: l})
		g.WaitWarm()
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoHang}}})
		leave(t, g, fmt.Sprintf(`{"model":"tiny","prompt":%q,"n":3,"max_tokens":16}`, prompt), func() bool { return s.Decode[0].UnderWay() == 3 })
		if used := l.ended(t, 1); used[0] != 7 {
			t.Errorf("charged %v; want the prompt, as prefill has counted it, once", used)
		}
	})
}

// TestTooLargeAnswersAreCharged has answers exceed a bound. Where the body has no limit of its answer the bytes are charged, four a token: nothing was
// reserved for them. Where it has one, all that was reserved is charged. The prompt is estimated at 8 tokens; prefill counts 7.
func TestTooLargeAnswersAreCharged(t *testing.T) {
	const answer, event = 128 << 10, 64 << 10
	big := func(l string) []routertest.Fault {
		return []routertest.Fault{{Leg: l, Do: routertest.DoBigToken, N: 2 * answer}}
	}
	for _, row := range []struct {
		name, connector, member string
		faults                  map[string][]routertest.Fault
		want                    int
	}{
		{"no limit", connector.NameNone, "", map[string][]routertest.Fault{"decode-0": big("")}, 8 + answer/4},
		{"no limit, streamed", connector.NameNone, `,"stream":true`, map[string][]routertest.Fault{"decode-0": big("")}, 8 + event/4},
		{"no limit, split", connector.NamePull, "", map[string][]routertest.Fault{"decode-0": big("decode")}, 7 + answer/4},
		{"no limit, prefill", connector.NamePull, "", map[string][]routertest.Fault{"prefill-0": big("prefill")}, -1},
		{"no limit, one of several choices", connector.NamePull, `,"n":2`, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Nth: 2, Do: routertest.DoBigToken, N: 2 * answer}, {Leg: "decode", Do: routertest.DoHang}}}, 7 + answer/4},
		{"a limit", connector.NameNone, `,"max_tokens":20`, map[string][]routertest.Fault{"decode-0": big("")}, -1},
		{"a limit, split", connector.NamePull, `,"max_tokens":20`, map[string][]routertest.Fault{"decode-0": big("decode")}, -1},
		{"a limit, several choices", connector.NamePull, `,"max_tokens":20,"n":2`, map[string][]routertest.Fault{"decode-0": big("decode")}, -1},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			s.Config.Limits.Answer, s.Config.Limits.Event = answer, event
			l := newCounted(limits.Limits{Tokens: 1 << 30})
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Limiter: l})
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			s.SetFaults(row.faults)
			r := g.Post(routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"one"}]`+row.member+`}`)
			if r.Status != 502 || r.Header.Get("X-Pdrouter-Reason") != "answer_too_large" {
				t.Errorf("status %d, header %v: %.300s", r.Status, r.Header, r.Body)
			}
			if used := l.ended(t, 1); !slices.Equal(used, []int{row.want}) {
				t.Errorf("charged %v; want %d", used, row.want)
			}
		})
	}
}

// TestDeadlinesAreCharged has the time of requests end before their answer: the engines have worked, so what is known is charged, as if the client had
// left. The prompt is estimated at 3 tokens; prefill counts 7.
func TestDeadlinesAreCharged(t *testing.T) {
	slow := []routertest.Fault{{Do: routertest.DoSlow, N: 3000}}
	for _, row := range []struct {
		name, connector, member string
		faults                  map[string][]routertest.Fault
		want                    int
	}{
		{"whole", connector.NameNone, "", map[string][]routertest.Fault{"decode-0": slow}, 3},
		{"streamed", connector.NameNone, `,"stream":true`, map[string][]routertest.Fault{"decode-0": slow}, 3},
		{"in prefill", connector.NamePush, "", map[string][]routertest.Fault{"prefill-0": slow}, 3},
		{"in decode", connector.NamePull, "", map[string][]routertest.Fault{"decode-0": slow}, 7},
		{"several choices", connector.NamePull, `,"n":3`, map[string][]routertest.Fault{"decode-0": slow}, 7},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			s.Config.Timeouts.Request, s.Config.Timeouts.RequestTotal = 500*time.Millisecond, 500*time.Millisecond
			l := newCounted(limits.Limits{Tokens: 1 << 30})
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Limiter: l})
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			s.SetFaults(row.faults)
			r := g.Post(routertest.PathCompletions, strings.TrimSuffix(routertest.PlainBody, "}")+row.member+"}")
			if r.Status != 504 || r.Header.Get("X-Pdrouter-Reason") != "deadline" {
				t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
			}
			if used := l.ended(t, 1); !slices.Equal(used, []int{row.want}) {
				t.Errorf("charged %v; want %d", used, row.want)
			}
		})
	}
}
