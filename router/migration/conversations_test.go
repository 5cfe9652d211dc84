package migration

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/tokens"
)

// TestTenantsShareMemory has one tenant bring ever more conversations. The others keep theirs, as far as these are within their shares.
func TestTenantsShareMemory(t *testing.T) {
	one := (&conversation{ids: make([]uint32, 100)}).size()
	all := newConversations(func(*conversation) {})
	all.setLimit(30 * one)
	n := uint64(0)
	put := func(tenant string) {
		n++
		all.put(tenant, &conversation{key: tokens.Sum{n}, ids: make([]uint32, 100), turned: time.Unix(int64(n), 0)}, nil)
	}
	for range 10 {
		put("small")
		put("other")
	}
	for range 1000 {
		put("large")
	}
	for _, tenant := range []string{"small", "other", "large"} {
		if of := all.tenants[tenant]; of == nil || of.used != 10*one {
			t.Errorf("%s: %+v; want 10 conversations of %d bytes", tenant, of, one)
		}
	}
	if latest := all.latest(); len(latest) != 30 || latest[0].key[0] != n || latest[29].key[0] != 1 {
		t.Errorf("%d conversations, the latest is %d of %d", len(latest), latest[0].key[0], n)
	}
	all.setLimit(0)
	if len(all.by)+len(all.tenants)+all.used != 0 {
		t.Errorf("%d conversations of %d tenants, %d bytes, with no room", len(all.by), len(all.tenants), all.used)
	}
}

// TestConversationsProperty has random conversations come and go on, and counts.
func TestConversationsProperty(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		all := newConversations(func(*conversation) {})
		all.setLimit(1 + rng.IntN(20_000))
		for n := range 60 {
			c := &conversation{key: tokens.Sum{rng.Uint64N(20)}, ids: make([]uint32, rng.IntN(200)), turned: time.Unix(int64(n), 0)}
			if rng.IntN(2) == 0 {
				c.opening = tokens.Sum{rng.Uint64N(5) + 1}
			}
			all.put(fmt.Sprint(rng.IntN(4)), c, []tokens.Sum{{rng.Uint64N(20)}, {rng.Uint64N(20)}})
			used, opened := map[string]int{}, 0
			for _, c := range all.latest() {
				used[c.tenant.name] += c.size()
				if all.opened[c.opening] == c {
					opened++
				}
			}
			sum := 0
			for name, n := range used {
				sum += n
				if all.tenants[name].used != n {
					t.Fatalf("seed %d: tenant %s has %d bytes; it says %d", seed, name, n, all.tenants[name].used)
				}
			}
			if sum != all.used || sum > all.limit || len(used) != len(all.tenants) || opened != len(all.opened) {
				t.Fatalf("seed %d: %d bytes of at most %d, it says %d; %d tenants, it says %d; %d openings, it says %d", seed, sum, all.limit, all.used,
					len(used), len(all.tenants), opened, len(all.opened))
			}
		}
	}
}

// chats notes turns of chats, and tells how many conversations are kept then.
type chats struct {
	*Mover
	t *testing.T
	e *fleet.Engine
}

func newChats(t *testing.T) *chats {
	s := &Snapshot{Config: &config.Config{Migration: config.Migration{Mode: config.MigrationEnabled, MaxIdle: time.Hour}}, Fleet: &fleet.Fleet{}}
	m := New(Parts{Log: slog.New(slog.DiscardHandler), Current: func() *Snapshot { return s }})
	m.plans.known.setLimit(1 << 20)
	return &chats{m, t, new(fleet.Engine)}
}

// turn notes a turn whose messages are words, of the roles that their first letters say: system, user or assistant.
func (c *chats) turn(tenant string, session uint64, messages, more string) int {
	c.t.Helper()
	var list []string
	for _, word := range strings.Fields(messages) {
		role := map[byte]string{'s': "system", 'u': "user", 'a': "assistant"}[word[0]]
		list = append(list, fmt.Sprintf(`{"role":%q,"content":%q}`, role, word))
	}
	b, bad := openai.ParseBody(openai.ShapeChat, []byte(`{"messages":[`+strings.Join(list, ",")+`]`+more+`}`), openai.Limits{})
	if bad != nil {
		c.t.Fatal(bad)
	}
	c.Note(&Turn{Model: "m", Asked: "m", Tenant: tenant, Session: session, Body: b, IDs: make([]uint32, 64), Prompt: 60, Decode: c.e})
	return c.Stats().Conversations
}

// TestWhichConversation says which turns are of one conversation.
func TestWhichConversation(t *testing.T) {
	for _, row := range []struct {
		name        string
		session     uint64
		first, next string
		want        int // conversations
	}{
		{"it goes on", 0, "s1 u1", "s1 u1 a1 u2", 1},
		{"it goes on, with a session", 7, "s1 u1", "s1 u1 a1 u2", 1},
		{"asked again", 0, "s1 u1 a1 u2", "s1 u1 a1 u2", 1},
		{"another one", 0, "s1 u1", "s1 u2", 2},
		{"another one of the session", 7, "s1 u1", "s1 u2", 2},
		{"edited", 0, "s1 u1 a1 u2", "s1 u1 a1 u3", 2},
		{"edited in a session", 7, "s1 u1 a1 u2", "s1 u1 a1 u3", 1},
		{"reasoning left out in a session", 7, "s1 u1 a1 u2", "s1 u1 a2 u2 a3 u3", 1},
		{"another system prompt in a session", 7, "s1 u1 a1 u2", "s2 u1 a1 u2 a2 u3", 2},
	} {
		c := newChats(t)
		c.turn("t", row.session, row.first, "")
		if got := c.turn("t", row.session, row.next, ""); got != row.want {
			t.Errorf("%s: %d conversations; want %d", row.name, got, row.want)
		}
	}
}

// TestConversationsApart: no turn replaces a conversation of another tenant, session, model or salt, whatever both are called.
func TestConversationsApart(t *testing.T) {
	c := newChats(t)
	c.turn("t", 7, "s1 u1 a1 u2", "")
	for i, kept := range []int{
		c.turn("other", 7, "s1 u1 a1 u2", ""), c.turn("t", 8, "s1 u1 a1 u2", ""), c.turn("t", 7, "s1 u1 a1 u2", `,"cache_salt":"x"`), c.turn("t", 7, "s1 u1 a1 u2", `,"tools":[{"type":"function"}]`),
	} {
		if kept != i+2 {
			t.Errorf("turn %d: %d conversations; want %d", i, kept, i+2)
		}
	}
	if kept := c.turn("other", 7, "s1 u1 a1 u2 a2 u3", ""); kept != 5 {
		t.Errorf("%d conversations after a conversation went on", kept)
	}
}

// TestTurnsAreCounted: a conversation that goes on keeps when it began, how often it was used, and what copies there are of what it still has.
func TestTurnsAreCounted(t *testing.T) {
	c := newChats(t)
	c.turn("t", 0, "s1 u1", "")
	to := new(fleet.Engine)
	first := c.plans.known.latest()[0]
	first.copied(to, 3, 48)
	c.turn("t", 0, "s1 u1 a1 u2", "")
	next := c.plans.known.latest()[0]
	if next.begun != first.begun || next.turns.n < 1.9 || next.copyAt(to, 3) != 48 || next.copyAt(to, 4) != 0 {
		t.Errorf("begun %v, %v turns, copies %v", next.begun.Sub(first.begun), next.turns.n, next.copies)
	}
}
