package router_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/internal/talktest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// TestMovedConversationsEqual has conversations go on while their engines drain one after the other, and compares each answer with that of one
// engine that has no cache. CONVERSATIONS says how many there are. The engines' answers are made from their KV, so KV of other tokens or of another
// salt would make another answer.
func TestMovedConversationsEqual(t *testing.T) {
	t.Run("asked", func(t *testing.T) { movedConversationsEqual(t, 1, nil) })
	t.Run("pinned", func(t *testing.T) {
		m := movedConversationsEqual(t, 4, pinning) // CI has no time for all of them twice
		if n := m.Router.Stats().Migration.PinsEnded; n[migration.PinRead] < 10 || n[migration.PinUnread] > 0 || n[migration.PinReplaced] == 0 {
			t.Errorf("what was pinned: %v", n)
		}
	})
}

// movedConversationsEqual has one of so many parts of the conversations.
func movedConversationsEqual(t *testing.T, parts int, change func(*config.Config, map[string]*refengine.Config)) *movers {
	conversations := 200
	if n, err := strconv.Atoi(os.Getenv("CONVERSATIONS")); err == nil {
		conversations = n
	}
	conversations /= parts
	m := newMovers(t, 3, func(c *config.Config, engines map[string]*refengine.Config) {
		c.Migration.Memory = 100 << 10
		for _, e := range engines {
			e.Adapters = []string{"adapter"}
		}
		if change != nil {
			change(c, engines)
		}
	})
	routertest.Eventually(t, "the adapter is known", func() bool {
		return m.Post(routertest.PathChat, `{"model":"adapter","messages":[{"role":"user","content":"a"}],"max_tokens":1}`).Status == 200
	})
	rng := rand.New(rand.NewPCG(1, uint64(conversations)))
	walk, turns := talktest.Walk{Rand: rng, Talks: conversations, Open: 60, Adapter: "adapter"}, 0
	for c := walk.Next(); c != nil; c = walk.Next() {
		c.Answered(m.answered(&talk{c.Name, c.Messages, c.Salt, c.Adapter}, rng.IntN(2) == 0, rng.IntN(4) == 0))
		if turns++; turns%40 == 39 {
			m.drain(fmt.Sprintf("decode-%d", turns/40%3))
		}
	}
	got := m.results()
	t.Logf("%d conversations, %d turns, moves: %v", conversations, turns, got)
	if got[migration.Moved] < conversations/10 || got[migration.Failed]+got[migration.Late]+got[migration.Refused]+got[migration.NoHandOff] > 0 {
		t.Errorf("moves: %v", got)
	}
	m.config.Migration.PinnedFor = 0
	if err := m.Router.Apply(m.config, m.Parts); err != nil {
		t.Fatal(err)
	}
	m.freed(0)
	return m
}

// answered has the gateway answer, as a stream or whole, with the token ids if the client asks for them, compares that with one engine's answer, and
// returns it.
func (m *movers) answered(c *talk, stream, ids bool) string {
	m.t.Helper()
	ask := map[string]any{"model": cmp.Or(c.adapter, "tiny"), "messages": c.messages, "max_tokens": 16, "ignore_eos": true, "cache_salt": c.salt, "stream": stream}
	if ids {
		ask["return_token_ids"] = true
	}
	body, _ := json.Marshal(ask)
	r := m.Post(routertest.PathChat, string(body), "X-Session-Id", c.name)
	if r.Status != 200 || r.Err != nil || strings.Contains(r.Body, `token_ids":[`) != ids {
		m.t.Fatalf("%s\nstatus %d, %v: %s", body, r.Status, r.Err, r.Body)
	}
	ask["stream"] = false
	body, _ = json.Marshal(ask)
	resp, err := http.Post("http://"+m.alone.Addr+routertest.PathChat, "application/json", strings.NewReader(string(body)))
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	var want chatAnswer
	if err := json.NewDecoder(resp.Body).Decode(&want); err != nil {
		m.t.Fatal(err)
	}
	got := ""
	for line := range strings.Lines(r.Body) {
		var a chatAnswer
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &a) == nil && len(a.Choices) > 0 {
			got += a.Choices[0].Message.Content + a.Choices[0].Delta.Content
		}
	}
	if got != want.Choices[0].Message.Content {
		m.t.Fatalf("%s\nthe answer is %q; want %q", body, got, want.Choices[0].Message.Content)
	}
	c.messages = append(c.messages, map[string]string{"role": "assistant", "content": got})
	return got
}
