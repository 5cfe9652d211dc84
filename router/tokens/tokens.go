// Package tokens learns which token ids the messages of a conversation have, from the lists that engines report of whole prompts. The next
// turn of a conversation repeats its messages, so its prompt's first ids are known without an engine, and the rest can be estimated. The
// package is pure and knows no tokenizer and no template; callers give it prompts (PromptOf) and lists, from any goroutine.
//
// A prompt is a chain of boundaries, one after each message. Only prompts of one model, tenant and salt, and with the same of everything else
// that a template may read, have boundaries in common.
//
// # What is exact
//
// The list of a prompt is not simply the beginning of the next turn's list. It ends with a generation prompt, which need not be what the
// model's message begins with, and the messages before may be rendered in another way once others follow: templates drop the reasoning
// of earlier turns, or move the tools before the last message of the user. So an id is called exact only if two lists had it, of a prompt
// and of one that has all its messages and more, and only for prompts that go through the message that followed:
//
//	A:  m1 m2            tokens  a b c d g
//	B:  m1 m2 m3 m4      tokens  a b c d e f g    exact for prompts that begin with m1 m2 m3: a b c d
//
// If no message of the user followed in B, that is said only of prompts in which none follows either: such a message is what makes templates
// drop reasoning. Two lists that part after a common message show nothing: what they share may be chance. A list that contradicts what was
// called exact shortens it, for all prompts that go through the boundaries of both.
//
// So an exact id can be wrong only if the template reads something else than the request, such as the date, or changes what is before for a
// reason that neither of the two lists had, such as a number of turns.
package tokens

import "sync"

// Map is what was learned, within a bound of memory; what was not used for longest is forgotten first. It is safe for concurrent use.
type Map struct {
	mu    sync.Mutex
	limit int // bytes
	used  int
	at    map[Sum]*entry
	ring  entry // a sentinel: next of it is what was used last, previous what was not for longest
}

// New returns a map of at most that many bytes.
func New(limit int) *Map {
	m := &Map{limit: limit, at: make(map[Sum]*entry)}
	m.ring.next, m.ring.previous = &m.ring, &m.ring
	return m
}

// SetLimit changes the bound. What is beyond it is forgotten.
func (m *Map) SetLimit(limit int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
	m.shrink()
}

// entry is what is known of prompts that go through one boundary. Its counts are of list's ids, from the first.
type entry struct {
	sum   Sum
	list  *list
	ends  bool // list is of the prompt that ends at this boundary
	known int  // ids that prompts with other messages after the boundary have too, as far as was seen; 0 if that was not seen
	any   int  // ids that are exact, whatever follows
	turn  int  // ids that are exact as long as no message of the user follows; any at least

	next, previous *entry
}

// list is what an engine reported of one prompt. Entries share it.
type list struct {
	ids     []uint32
	bytes   int // of the prompt
	trail   int // ids at its end that are not of its messages, as far as was seen: a generation prompt
	entries int // that refer to it
}

// What an entry and a list cost beside the ids, in bytes.
const (
	entrySize = 160
	listSize  = 64
)

func (l *list) size() int { return listSize + 4*cap(l.ids) }

// Lookup returns what is known of a prompt's token ids. The first exact of ids are its first ids; the others were those of a prompt that
// begins with the same messages. estimate is the number of tokens of the whole prompt. ids must not be changed.
func (m *Map) Lookup(p Prompt) (ids []uint32, exact, estimate int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, i := m.deepest(p)
	if e == nil {
		return nil, 0, p.bytes() / 4
	}
	m.touch(e)
	all, rest := e.list, p[i:]
	n := e.known
	exact = e.any
	if !rest.user() {
		exact = e.turn
	}
	if e.ends {
		n = len(all.ids) - all.trail
		if len(rest) == 0 {
			return all.ids, exact, len(all.ids)
		}
	}
	n = max(n, exact)
	estimate = scaled(p.bytes(), all)
	if n > 0 && (e.ends || e.known > 0) {
		estimate = n + scaled(p.bytes()-p[i-1].Bytes, all)
	}
	return all.ids[:n:n], exact, max(estimate, n)
}

// scaled is how many tokens so many bytes have, by those of a list.
func scaled(bytes int, by *list) int { return bytes * len(by.ids) / max(by.bytes, 1) }

// deepest returns the last boundary of the prompt that is known, as the number of its messages; nil if none is.
func (m *Map) deepest(p Prompt) (*entry, int) {
	for i := len(p); i > 0; i-- {
		if e := m.at[p[i-1].Sum]; e != nil {
			return e, i
		}
	}
	return nil, 0
}

// Learn notes the token ids of a prompt. They must not be changed afterwards.
func (m *Map) Learn(p Prompt, ids []uint32) {
	now := &list{ids: ids, bytes: p.bytes()}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(p) == 0 || len(ids) == 0 || now.size()+len(p)*entrySize > m.limit/4 {
		return
	}
	always, turn := 0, 0 // exact at the boundaries that are new, as any and turn of an entry
	last, from := m.deepest(p)
	if last != nil {
		always, turn = m.compare(last, p, from, now)
	}
	for _, b := range p[from:] {
		m.add(&entry{sum: b.Sum, any: always, turn: turn}, now)
	}
	m.at[p[len(p)-1].Sum].ends = true
	m.shrink()
}

// shrink keeps within the bound.
func (m *Map) shrink() {
	for m.used > m.limit {
		m.remove(m.ring.previous)
	}
}

// compare holds a new list against those of the boundaries of its prompt that are known; last is the deepest of them, after from messages. They
// refer to the new list from then on. It returns how many ids are exact at the boundaries after last.
func (m *Map) compare(last *entry, p Prompt, from int, now *list) (always, turn int) {
	was := last.list
	common := CommonPrefix(was.ids, now.ids)
	always, turn, now.trail = min(last.any, common), min(last.turn, common), was.trail
	if last.ends && from < len(p) { // the prompt of the list before is the beginning of this one
		turn, now.trail = common, len(was.ids)-common
		if p[from:].user() {
			always = common
		}
	}
	if from < len(p) && last.known == 0 {
		last.known = common
	}
	for i := from; i > 0; i-- {
		e := m.at[p[i-1].Sum]
		if e == nil {
			continue
		}
		if e.list != was {
			was = e.list
			common = CommonPrefix(was.ids, now.ids)
		}
		e.any, e.turn, e.known, e.ends = min(e.any, common), min(e.turn, common), min(e.known, common), false
		m.refer(e, now)
		m.touch(e)
	}
	return always, turn
}

// CommonPrefix is how many token ids two lists begin with that are the same.
func CommonPrefix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// add enters a boundary that is not known yet.
func (m *Map) add(e *entry, of *list) {
	m.at[e.sum] = e
	m.used += entrySize
	m.refer(e, of)
	e.next, e.previous = e, e
	m.touch(e)
}

// refer has an entry refer to a list, and drops the one before if no other does.
func (m *Map) refer(e *entry, to *list) {
	if to != nil {
		if to.entries++; to.entries == 1 {
			m.used += to.size()
		}
	}
	if was := e.list; was != nil {
		if was.entries--; was.entries == 0 {
			m.used -= was.size()
		}
	}
	e.list = to
}

// touch makes an entry the one that was used last.
func (m *Map) touch(e *entry) {
	e.previous.next, e.next.previous = e.next, e.previous
	e.previous, e.next = &m.ring, m.ring.next
	e.previous.next, e.next.previous = e, e
}

func (m *Map) remove(e *entry) {
	e.previous.next, e.next.previous = e.next, e.previous
	delete(m.at, e.sum)
	m.used -= entrySize
	m.refer(e, nil)
}

// Bytes is how much memory is in use.
func (m *Map) Bytes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}
