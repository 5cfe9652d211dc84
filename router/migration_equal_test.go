package router_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// TestMovedConversationsEqual has conversations go on while their engines drain one after the other, and compares each answer with that of one
// engine that has no cache. Between two turns clients go on, edit or remove messages, ask once more, branch off, begin anew with less, or take
// another salt or adapter. CONVERSATIONS says how many there are. The engines' answers are made from their KV, so KV of other tokens or of another salt would make another answer.
func TestMovedConversationsEqual(t *testing.T) {
	conversations := 200
	if n, err := strconv.Atoi(os.Getenv("CONVERSATIONS")); err == nil {
		conversations = n
	}
	m := newMovers(t, 3, func(c *config.Config, engines map[string]*refengine.Config) {
		c.Migration.Memory = 100 << 10
		for _, e := range engines {
			e.Adapters = []string{"adapter"}
		}
	})
	routertest.Eventually(t, "the adapter is known", func() bool {
		return m.Post(routertest.PathChat, `{"model":"adapter","messages":[{"role":"user","content":"a"}],"max_tokens":1}`).Status == 200
	})
	rng := rand.New(rand.NewPCG(1, uint64(conversations)))
	words := strings.Fields("what is the number of it and where do they go when none is left to say why not")
	text := func() string {
		said := make([]string, 4+rng.IntN(12))
		for i := range said {
			said[i] = words[rng.IntN(len(words))]
		}
		return strings.Join(said, " ")
	}
	var open []*talk
	begun, turns := 0, 0
	for begun < conversations || len(open) > 0 {
		if begun < conversations && len(open) < 60 {
			c := &talk{name: fmt.Sprintf("session %d", begun%500), salt: []string{"", "salt a", "salt b"}[rng.IntN(3)], adapter: []string{"", "adapter"}[rng.IntN(2)]}
			c.messages = append(c.messages, map[string]string{"role": "system", "content": fmt.Sprintf("you are number %d. %s", begun%50, strings.Repeat("be kind. ", 6))})
			c.say(text())
			open, begun = append(open, c), begun+1
			m.answered(c, rng.IntN(2) == 0, rng.IntN(4) == 0)
		}
		if turns%40 == 39 {
			m.drain(fmt.Sprintf("decode-%d", turns/40%3))
		}
		turns++
		i := rng.IntN(len(open))
		c := open[i]
		switch n := len(c.messages); rng.IntN(9) {
		case 0: // an earlier message is edited
			at := rng.IntN(n)
			c.messages[at] = map[string]string{"role": c.messages[at]["role"], "content": text()}
		case 1: // one is removed
			at := rng.IntN(n)
			c.messages = slices.Delete(c.messages, at, at+1)
		case 2: // the last answer is asked for again
			c.messages = c.messages[:max(1, n-1)]
		case 3: // another one branches off
			if begun < conversations {
				open, begun = append(open, &talk{name: c.name, salt: c.salt, adapter: c.adapter, messages: slices.Clone(c.messages)}), begun+1
			}
		case 4: // all but the beginning is left out
			c.messages = c.messages[:1]
		case 5:
			c.salt, c.adapter = "salt a", "adapter"
		}
		c.say(text())
		m.answered(c, rng.IntN(2) == 0, rng.IntN(4) == 0)
		if len(c.messages) > 6 || rng.IntN(3) == 0 {
			open = slices.Delete(open, i, i+1)
		}
	}
	got := m.results()
	t.Logf("%d conversations, %d turns, moves: %v", begun, turns, got)
	if got[migration.Moved] < conversations/10 || got[migration.Failed]+got[migration.Late]+got[migration.Refused]+got[migration.NoHandOff] > 0 {
		t.Errorf("moves: %v", got)
	}
	m.freed(0)
}

// answered has the gateway answer, as a stream or whole, with the token ids if the client asks for them, and compares that with one engine's
// answer.
func (m *movers) answered(c *talk, stream, ids bool) {
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
}
