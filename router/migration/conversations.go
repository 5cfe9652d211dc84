package migration

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/tokens"
)

// conversation is what is kept of one: the tokens of its latest turn, and which engines have their KV. Its KV is that of these tokens, whatever
// the client sends next, so a move of it is never wrong; it is of use as far as the next prompt begins with them.
type conversation struct {
	key     tokens.Sum
	opening tokens.Sum // what its first prompt began with, of a session with a name; zero: that is not known
	tenant  *tenant
	model   string // the configuration's
	asked   string // the model or adapter that the client names
	adapter string // "" is the model itself
	salt    []byte // the cache's, as engines get it, JSON; nil: none
	session uint64 // as in exchange.Request

	saltText string // what salt says
	ids      []uint32
	prompt   int // of ids, those of the prompt
	trace    *fleet.PromptTrace
	at       [2]place // by role: prefill has the prompt, decode has all
	copies   []held   // by other engines, of the beginning
	begun    time.Time
	turned   time.Time
	turns    decayed
	scale    float64 // what was estimated of the prompt's tokens from its text, for each of them: policies know no others
	pin      *pin    // what decode pins of it, for a move; nil: nothing
	awaited  bool    // a request waits for a move of it
	moved    bool    // there was one since its latest turn
	lastMove *Ended  // since its latest turn; nil: there was none

	next, previous *conversation // of its tenant
}

// place is a run of an engine that has the KV of a conversation.
type place struct {
	engine *fleet.Engine // nil: there is none
	run    uint64
}

// held is how many tokens of a conversation a run of an engine has.
type held struct {
	place
	tokens int
}

// copied notes that an engine has so many tokens of the conversation.
func (c *conversation) copied(to *fleet.Engine, run uint64, tokens int) {
	c.copies = append(slices.DeleteFunc(c.copies, func(h held) bool { return h.engine == to }), held{place{to, run}, tokens})
}

// copyAt is how many tokens of the conversation a run of an engine has, as far as is known.
func (c *conversation) copyAt(e *fleet.Engine, run uint64) (most int) {
	for _, h := range c.copies {
		if h.place == (place{e, run}) {
			most = h.tokens
		}
	}
	for r, at := range c.at {
		if at == (place{e, run}) {
			most = max(most, c.tokensAt(fleet.Role(r)))
		}
	}
	return most
}

// asFleet is the conversation as the choice of an engine of a role goes by it.
func (c *conversation) asFleet(m *fleet.Model, r fleet.Role, now time.Time) fleet.Conversation {
	return fleet.Conversation{Model: m, Role: r, Adapter: c.adapter, Session: c.session, Tokens: c.prompt, At: now}
}

// follow takes over what is known of the conversation from what was kept of it before its latest turn.
func (c *conversation) follow(was *conversation, fades time.Duration) {
	c.begun = was.begun
	c.turns = decayed{1 + was.turns.at(c.turned, fades), c.turned}
	same := tokens.CommonPrefix(c.ids, was.ids)
	for _, h := range was.copies {
		c.copies = append(c.copies, held{h.place, min(h.tokens, same)})
	}
}

// decayed is a count of which what is long ago counts less.
type decayed struct {
	n float64
	t time.Time
}

// at is the count at a time: what was counted so long ago counts a third.
func (d decayed) at(now time.Time, fades time.Duration) float64 {
	return d.n * math.Exp(-float64(now.Sub(d.t))/float64(max(fades, 1)))
}

// tokensAt is how many tokens the engine of a role has.
func (c *conversation) tokensAt(r fleet.Role) int {
	if r == fleet.Prefill {
		return c.prompt
	}
	return max(len(c.ids)-1, c.prompt) // the KV of an answer's last token was not computed
}

// size is what it takes of memory, in bytes, about.
func (c *conversation) size() int {
	return 400 + 4*cap(c.ids) + len(c.salt) + len(c.model) + len(c.asked) + c.trace.Size()
}

// conversations are those that are kept, within a bound of memory. Past it the tenant with the most gives up the one without a turn for longest, so
// that no tenant has less than its share because of others. It is not safe for concurrent use.
type conversations struct {
	limit, used int // bytes
	by          map[tokens.Sum]*conversation
	opened      map[tokens.Sum]*conversation // by their openings
	tenants     map[string]*tenant
	forgotten   func(*conversation) // is called for each that is not kept any more
}

// tenant is whose conversations are kept.
type tenant struct {
	name string
	used int          // bytes
	ring conversation // a sentinel: next of it is the one with the latest turn
}

func newConversations(forgotten func(*conversation)) *conversations {
	return &conversations{forgotten: forgotten, by: map[tokens.Sum]*conversation{}, opened: map[tokens.Sum]*conversation{}, tenants: map[string]*tenant{}}
}

// put keeps a tenant's conversation after a turn, in place of what was kept of it before that turn, which it returns; nil if that is nothing. was
// is how its earlier turns may be called, the latest last.
func (t *conversations) put(name string, c *conversation, was []tokens.Sum) (old *conversation) {
	drop := func(o *conversation) {
		if o != nil {
			t.remove(o)
			old = cmp.Or(old, o)
		}
	}
	drop(t.before(was))
	drop(t.by[c.key]) // the turn was asked for again
	if c.opening != (tokens.Sum{}) {
		drop(t.opened[c.opening])
		t.opened[c.opening] = c
	}
	of := t.tenants[name]
	if of == nil {
		of = &tenant{name: name}
		of.ring.next, of.ring.previous = &of.ring, &of.ring
		t.tenants[name] = of
	}
	t.by[c.key], c.tenant = c, of
	t.used, of.used = t.used+c.size(), of.used+c.size()
	c.previous, c.next = &of.ring, of.ring.next
	c.previous.next, c.next.previous = c, c
	t.shrink()
	return old
}

func (t *conversations) remove(c *conversation) {
	c.previous.next, c.next.previous = c.next, c.previous
	c.next, c.previous = nil, nil
	delete(t.by, c.key)
	if t.opened[c.opening] == c {
		delete(t.opened, c.opening)
	}
	t.used, c.tenant.used = t.used-c.size(), c.tenant.used-c.size()
	if c.tenant.used == 0 {
		delete(t.tenants, c.tenant.name)
	}
	t.forgotten(c)
}

// before is the one that the latest of these turns is of; nil if none is kept.
func (t *conversations) before(turns []tokens.Sum) *conversation {
	for _, sum := range slices.Backward(turns) {
		if c := t.by[sum]; c != nil {
			return c
		}
	}
	return nil
}

// has reports whether a conversation is kept still, and was not replaced by its next turn.
func (t *conversations) has(c *conversation) bool { return t.by[c.key] == c }

// setLimit changes the bound.
func (t *conversations) setLimit(bytes int) {
	t.limit = bytes
	t.shrink()
}

func (t *conversations) shrink() {
	for t.used > t.limit {
		var most *tenant
		for _, of := range t.tenants {
			if most == nil || of.used > most.used {
				most = of
			}
		}
		t.remove(most.ring.previous)
	}
}

// latest returns those that are kept, the one with the latest turn first.
func (t *conversations) latest() []*conversation {
	return slices.SortedFunc(maps.Values(t.by), func(a, b *conversation) int {
		return cmp.Or(b.turned.Compare(a.turned), slices.Compare(a.key[:], b.key[:]))
	})
}
