package router_test

import (
	"fmt"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
)

// TestFault19SameRequestID has eight live requests with the same X-Request-Id, each with another prompt, and headers that engines
// would heed: all are served, and what decode takes was computed from its own prompt.
func TestFault19SameRequestID(t *testing.T) {
	for _, connectorName := range []string{connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		t.Run("19 "+connectorName, func(t *testing.T) {
			s, g := newServed(t, connectorName)
			s.Decode[0].SetHabit(func(h *routertest.Habit) { h.Parrot = true })
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoSlow, N: 20}}, "prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 20}}})
			before := s.Cluster.Count("", "")
			done := make(chan error)
			const clients = 8
			for i := range clients {
				go func() {
					r := g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":"p%d","max_tokens":16,"stream":true,"request_id":"same"}`, i),
						"X-Request-Id", "same", "X-Data-Parallel-Rank", "3", "X-Vllm-Priority", "9", "Cookie", "c",
						"X-Prefiller-Url", "http://6.6.6.6", "Authorization", "Bearer client")
					want := fmt.Sprintf("p%d//0 %s", i, routertest.WholeText)
					if got, whole := routertest.Text(t, r); got != want || !whole || r.Header.Get("X-Request-Id") != "same" {
						done <- fmt.Errorf("text %q, whole %v, header %v; want %q", got, whole, r.Header, want)
						return
					}
					done <- nil
				}()
			}
			for range clients {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			g.WaitIdle()
			ids, prompts := map[string]bool{}, map[string]string{} // by the id that prefill was asked under
			for _, q := range s.Cluster.All()[before:] {
				key := q.Leg + q.ID
				if ids[key] || strings.Contains(q.ID, "same") || strings.Contains(q.Body, `"same"`) {
					t.Errorf("%s was sent id %q again, or the client's: %s", q.Leg, q.ID, q.Body)
				}
				if ids[key] = true; q.Leg == "prefill" {
					prompts[q.ID] = q.Prompt()
				}
				for name := range q.Header {
					switch name {
					case "X-Request-Id", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "User-Agent":
					default:
						if !strings.HasPrefix(name, "X-Pdrouter-") {
							t.Errorf("%s was sent %s: %s", q.Engine, name, q.Header.Get(name))
						}
					}
				}
			}
			for _, q := range s.Cluster.All()[before:] {
				if q.Leg != "decode" {
					continue
				}
				from := q.ID
				if ref, ok := q.KV["remote_request_id"].(string); ok && connectorName == connector.NamePull {
					from = ref
				}
				if prompts[from] != q.Prompt() {
					t.Errorf("decode of %q takes the KV of %q", q.Prompt(), prompts[from])
				}
			}
			s.CheckNothingHeld(t)
		})
	}
}
