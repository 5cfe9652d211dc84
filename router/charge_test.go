package router

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/limits"
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
			e := newFakeAny(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":0}}}\n\n"+
					"event: content_block_start\ndata: {\"type\":\"content_block_start\"}\n\n")
				for range deltas {
					_, _ = io.WriteString(w, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n")
				}
				_, _ = io.WriteString(w, row.end)
			})
			l := newCounted(limits.Limits{Tokens: 1 << 30})
			g := start(t, anyFleet(e), Parts{Limits: l})
			g.post(pathMessages, `{"model":"tiny","max_tokens":1000,"stream":true,"messages":[{"role":"user","content":"a"}]}`)
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
		faults     []fault
		status     int
		want       int
	}{
		{"whole", `"n":4`, nil, 200, 7 + 4*3},
		{"stream", `"n":4,"stream":true`, nil, 200, 7 + 4*3},
		{"failed before an answer", `"n":3`, []fault{{Leg: "decode", Nth: 1, Do: doError}, {Leg: "decode", Do: doSlow, N: 1000}}, 502, 0},
		{"failed before the first event", `"n":3,"stream":true`, []fault{{Leg: "decode", Nth: 1, Do: doError}, {Leg: "decode", Do: doSlow, N: 1000}}, 502, 0},
		{"rejected", `"n":3`, []fault{{Leg: "decode", Nth: 2, Do: doReject}, {Leg: "decode", Do: doSlow, N: 1000}}, 400, 0},
	} {
		for _, connector := range []string{ConnectorPull, ConnectorPush} {
			unhurried(t, connector+" "+row.name, func(t *testing.T) {
				s := newPool(t, connector, 1, 1, nil)
				s.cfg.Limits.Attempts = 1
				l := newCounted(limits.Limits{Tokens: 1 << 30})
				g := start(t, s.cfg, Parts{Planner: firstUsable{}, Limits: l})
				g.warmed()
				s.setFaults(map[string][]fault{"decode-0": row.faults})
				body := fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":16,%s}`, prompt, row.body)
				if r := g.post(pathCompletions, body); r.Status != row.status {
					t.Errorf("status %d: %s; want %d", r.Status, r.Body, row.status)
				}
				if used := l.ended(t, 1); !slices.Equal(used, []int{row.want}) {
					t.Errorf("charged %v; want %d", used, row.want)
				}
			})
		}
	}
	unhurried(t, "prompts", func(t *testing.T) {
		s := newPool(t, ConnectorPull, 1, 1, nil)
		l := newCounted(limits.Limits{Tokens: 1 << 30})
		g := start(t, s.cfg, Parts{Planner: firstUsable{}, Limits: l})
		g.warmed()
		g.post(pathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":[%q,"b"],"n":2,"max_tokens":16}`, prompt))
		if used := l.ended(t, 1); used[0] != 2*7+4*3 {
			t.Errorf("charged %v; want %d", used, 2*7+4*3)
		}
	})
	unhurried(t, "client leaves", func(t *testing.T) {
		s := newPool(t, ConnectorPull, 1, 1, nil)
		l := newCounted(limits.Limits{Tokens: 1 << 30})
		g := start(t, s.cfg, Parts{Planner: firstUsable{}, Limits: l})
		g.warmed()
		s.setFaults(map[string][]fault{"decode-0": {{Leg: "decode", Do: doHang}}})
		leave(t, g, fmt.Sprintf(`{"model":"tiny","prompt":%q,"n":3,"max_tokens":16}`, prompt), func() bool { return s.d[0].underWay() == 3 })
		if used := l.ended(t, 1); used[0] != 7 {
			t.Errorf("charged %v; want the prompt, as prefill has counted it, once", used)
		}
	})
}
