package router_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestTokensContinued has split chats answered from the token ids that prefill has answered, while decode dies at random tokens: the client has
// what one engine says of the messages, and an engine that goes on is not sent the ids of the hand-off.
func TestTokensContinued(t *testing.T) {
	tellers := make([]*fakeTeller, 4) // prefill first
	m := config.Model{Name: "tiny", Connector: connector.NamePull}
	var urls []string
	for i := range tellers {
		tellers[i] = &fakeTeller{dies: -1}
		srv := httptest.NewServer(http.HandlerFunc(tellers[i].serve))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		urls = append(urls, srv.URL)
		e := config.Engine{Name: fmt.Sprintf("e%d", i), URL: srv.URL}
		if i == 0 {
			m.Prefill = append(m.Prefill, e)
		} else {
			m.Decode = append(m.Decode, e)
		}
	}
	p := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	cfg := config.Config{Models: []config.Model{m}, Limits: config.Limits{RetryFloor: new(1 << 20), Failures: 1 << 20, Attempts: 3}, Health: config.Health{Failures: 1 << 20, PanicPercent: 1}}
	g := routertest.Start(t, cfg, router.Parts{Planner: p})
	g.WaitWarm()
	set := func(dies ...int) {
		for i, f := range tellers[1:] {
			f.mu.Lock()
			f.dies, f.asked, f.given = dies[i], nil, nil
			f.mu.Unlock()
		}
	}
	continued := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 59))
		n := 2 + rng.IntN(20)
		body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"seed %d"}],"max_tokens":%d,"temperature":0,"stream":true}`, seed, n)
		set(-1, -1, -1)
		direct, err := http.Post(urls[1]+routertest.PathChat, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(direct.Body)
		_ = direct.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		want, _ := said(t, string(answer))
		dies := []int{1 + rng.IntN(n+1), 1 + rng.IntN(n+1), -1}
		rng.Shuffle(3, func(i, j int) { dies[i], dies[j] = dies[j], dies[i] })
		set(dies...)
		r := g.Post(routertest.PathChat, body)
		if got, _ := said(t, r.Body); got != want || r.Err != nil || strings.Contains(r.Body, "token_ids\":[") {
			t.Fatalf("seed %d, dies %v: %v\ngot  %q\nwant %q\n%s", seed, dies, r.Err, got, want, r.Body)
		}
		s := g.Summary(int(seed) + 1)
		if s.Outcome != dispatch.Completed || s.TokenIDs.String() != "forwarded" {
			t.Fatalf("seed %d: %s, token ids %s", seed, s.Outcome, s.TokenIDs)
		}
		continued += int(s.Continued)
		given := 0
		for _, f := range tellers[1:] {
			f.mu.Lock()
			given += len(f.given)
			for _, q := range f.asked {
				if strings.HasPrefix(q, routertest.PathCompletions) && strings.Contains(q, "prompt_token_ids") {
					t.Errorf("seed %d: an engine that goes on got %s", seed, q)
				}
			}
			f.mu.Unlock()
		}
		if given != 1 {
			t.Errorf("seed %d: %d decode legs were answered from token ids, want 1", seed, given)
		}
	}
	if continued < 100 {
		t.Errorf("%d streams went on; the test shows nothing of that", continued)
	}
}
