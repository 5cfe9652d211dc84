package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// tokensOfTurn are the token ids of a conversation's first turn, its prompt and its answer.
func (m *movers) tokensOfTurn(c *talk, answer int) []uint32 {
	m.t.Helper()
	first := &talk{messages: c.messages[:1]}
	body := strings.Replace(first.body(answer, false), "{", `{"return_token_ids":true,`, 1)
	resp, err := http.Post("http://"+m.alone.Addr+routertest.PathChat, "application/json", strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	var a struct {
		Prompt  []uint32 `json:"prompt_token_ids"`
		Choices []struct {
			IDs []uint32 `json:"token_ids"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || len(a.Prompt) == 0 || len(a.Choices[0].IDs) == 0 {
		m.t.Fatalf("%v: %+v", err, a)
	}
	return append(a.Prompt, a.Choices[0].IDs...)
}

// TestMovesGoByTheIndex: where engines say which blocks they have, what the source lost is not asked for, and what the target has is not moved.
func TestMovesGoByTheIndex(t *testing.T) {
	for _, row := range []struct {
		name           string
		source, target int // how many tokens they have; -1: all
		want           migration.Result
		tokens         int // 0: all, but for a part of a block
	}{
		{"the source has lost all", 0, 0, migration.Evicted, 0},
		{"the source has lost too much", 16, 0, migration.Evicted, 16},
		{"the source has lost some", 100, 0, migration.Moved, 96},
		{"the target has some", -1, 100, migration.Moved, 0},
		{"the target has all", -1, -1, migration.AlreadyThere, 0},
		{"the target has as much as the source", 100, 100, migration.AlreadyThere, 96},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newMovers(t, 2, nil)
			for i := range m.config.Models[0].Decode {
				m.config.Models[0].Decode[i].KVEvents = config.KVEvents{Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", 8+i)} // nobody listens: Holds says what they have
			}
			c := m.talks("decode-0", 1)[0]
			ids := m.tokensOfTurn(c, 20)
			holds := func(engine string, n int) {
				if n < 0 {
					n = len(ids)
				}
				m.Router.Debug().Holds(engine, "", ids[:n])
			}
			holds("decode-0", row.source)
			holds("decode-1", row.target)
			m.drain("decode-0")
			if got := m.resultsOf(1); got[row.want] != 1 || len(got) != 1 {
				t.Fatalf("moves: %v; want one of %s", got, row.want)
			}
			if got := m.ended()[0].Tokens; row.tokens > 0 && got != row.tokens || row.tokens == 0 && row.want == migration.Moved && got < len(ids)-2*16 {
				t.Errorf("%d of %d tokens were moved", got, len(ids))
			}
			m.freed(0)
		})
	}
}
