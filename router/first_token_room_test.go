package router_test

import (
	"fmt"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router/firsttoken"
)

// TestFirstTokenRoom: an answer that decode has no room for is refused as one engine refuses it, before the client has any of it. One that just
// fits is whole.
func TestFirstTokenRoom(t *testing.T) {
	m := newMovers(t, 1, firstOfPrefill)
	m.learnedSizes()
	const room, prompt = 4096, 4001
	ids := strings.TrimSuffix(strings.Repeat("5,", prompt), ",")
	for _, most := range []int{room - prompt - 1, room - prompt, room - prompt + 1, 1 << 20} {
		r, s := m.ask(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":[%s],"max_tokens":%d,"stream":true}`, ids, most))
		if fits := prompt+most <= room; fits && (r.Status != 200 || s.FirstToken != firsttoken.Prefill) || !fits && r.Status != 400 {
			t.Errorf("%d tokens: status %d, %v: %.300s", most, r.Status, s.FirstToken, r.Body)
		}
	}
	m.freed(0)
}

// TestFirstTokenUnbounded: a chat that does not say how long its answer may be gets as much of it as from one engine that stops at the model's
// end, not the 16 tokens of a completion, whether its stream would be continued after a failure or not.
func TestFirstTokenUnbounded(t *testing.T) {
	for _, after := range []string{policies.Cut, policies.ContinueAlways} {
		t.Run(after, func(t *testing.T) {
			m := newMoversBy(t, planned(t, "default: {prefill: prefix, decode: session, after_failure: "+after+"}"), 1, firstOfPrefill)
			m.learnedSizes()
			r, s := m.ask(routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a b c"}],"ignore_eos":true,"stream":true}`)
			if got := streamOf(t, r.Body); s.FirstToken != firsttoken.Prefill || got.finish != "length" || len([]rune(got.text)) < 100 {
				t.Errorf("%v: %+v", s.FirstToken, got)
			}
		})
	}
}
