package migration

import (
	"slices"

	"pdrouter/router/fleet"
	"pdrouter/router/tokens"
)

// shared is what several conversations begin with.
type shared struct {
	c      *conversation // one of them: its first tokens
	tokens int
	n      float64 // how many there are; those that began long ago count less
	held   []held  // by which runs of engines; tokens are those of a conversation, at least so many
}

// beginning is what is looked for beginnings: a conversation, as far as an engine that computed its prompt has it.
type beginning struct {
	c      *conversation
	tokens int
	n      float64 // what it counts
	held   []held
}

// branch is a branch of the tree of beginnings: tokens that follow those of the branch below, up to where conversations part or end.
type branch struct {
	label []uint32
	next  map[uint32]*branch // by their first tokens
	ends  []beginning        // here
}

// sharedOf returns what at least two of the conversations begin with, at least so many tokens, the longest of those that begin with each other
// first. It takes time for each token that is shared, and none for those that are not.
func sharedOf(all []beginning, least int) (out []shared) {
	root := new(branch)
	for _, b := range all {
		root.enter(b, b.c.ids[:b.tokens])
	}
	root.collect(0, least, &out)
	return out
}

// enter puts a conversation into the tree. ids are those of its tokens that follow the branch.
func (t *branch) enter(b beginning, ids []uint32) {
	for len(ids) > 0 {
		next := t.next[ids[0]]
		if next == nil {
			next = &branch{label: ids}
			t.add(next)
		}
		n := tokens.CommonPrefix(next.label, ids)
		if n < len(next.label) { // it parts here
			upper := &branch{label: next.label[:n]}
			next.label = next.label[n:]
			upper.add(next)
			t.add(upper)
			next = upper
		}
		t, ids = next, ids[n:]
	}
	t.ends = append(t.ends, b)
}

func (t *branch) add(next *branch) {
	if t.next == nil {
		t.next = map[uint32]*branch{}
	}
	t.next[next.label[0]] = next
}

// collect appends what is shared in the branch and above. It returns what all of it is, and how many conversations.
func (t *branch) collect(below, least int, out *[]shared) (s shared, members int) {
	s.tokens = below + len(t.label)
	for _, b := range t.ends {
		s.add(shared{c: b.c, n: b.n, held: b.held})
		members++
	}
	for _, next := range t.next {
		above, n := next.collect(s.tokens, least, out)
		s.add(above)
		members += n
	}
	if members > 1 && s.tokens >= max(least, 1) {
		own := s
		own.held = nil
		for _, h := range s.held {
			if h.tokens >= s.tokens {
				own.held = append(own.held, h)
			}
		}
		*out = append(*out, own)
	}
	return s, members
}

// add takes in what is above: its conversations begin with the same tokens.
func (s *shared) add(above shared) {
	if s.c == nil || above.c.turned.After(s.c.turned) {
		s.c = above.c
	}
	s.n += above.n
	for _, h := range above.held {
		s.hold(h)
	}
}

func (s *shared) hold(h held) {
	for i := range s.held {
		if s.held[i].place == h.place {
			s.held[i].tokens = max(s.held[i].tokens, h.tokens)
			return
		}
	}
	s.held = append(s.held, h)
}

// onlyOneOf returns the run of one of the engines that has it, if no other of them has; else nil.
func (s *shared) onlyOneOf(engines []*fleet.Engine) (only *held) {
	for i := range s.held {
		h := &s.held[i]
		if !slices.Contains(engines, h.engine) {
			continue
		}
		if only != nil {
			return nil
		}
		only = h
	}
	return only
}
