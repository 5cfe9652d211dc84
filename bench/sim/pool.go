package sim

import "slices"

// Run is a stretch of a prompt's full KV blocks that is known by one name: two prompts with the same name there have the same blocks, as many as
// both have, and all tokens before these are the same. A trace's ids are such names.
type Run struct {
	ID     uint64
	Blocks int
}

// kvPool is a modelled engine's KV cache, in blocks: those that requests hold, each once however many share it, and full
// blocks of prompts that no request holds, which stay until they are evicted, the least recently used first.
type kvPool struct {
	blocks int // that there are
	used   int // that requests hold
	unused int // that are known and no request holds
	known  map[uint64]*kvRun
	idle   kvIdle // the ends of the list of unused blocks: next is evicted first

	changes int // grows with whatever may let a request have blocks that had too few before
}

// kvRun is the known beginning of a run. Requests hold its first blocks; of the others, those further back were used less recently. So it is evicted
// from its end.
type kvRun struct {
	id     uint64
	blocks int       // that are known
	held   []int     // by each request that holds some: how many of them
	idle   []*kvIdle // those that none holds, from the end: used together
}

// kvIdle are blocks of a run that were released together: from..to-1.
type kvIdle struct {
	run        *kvRun
	from, to   int
	prev, next *kvIdle
}

// kvHeld is what one request holds: the blocks of its prompt's beginning that others can find, and a number of others.
type kvHeld struct {
	shared []kvShare // of each run, some of its first blocks
	blocks int       // in all
	own    int
}

type kvShare struct {
	run    *kvRun
	blocks int
}

func newKVPool(blocks int) *kvPool {
	p := &kvPool{blocks: blocks, known: map[uint64]*kvRun{}}
	p.idle.prev, p.idle.next = &p.idle, &p.idle
	return p
}

// inUse is how many of the run's blocks requests hold.
func (r *kvRun) inUse() int {
	most := 0
	for _, n := range r.held {
		most = max(most, n)
	}
	return most
}

// take gives a request all blocks that it will ever need, among them those of its prompt's first blocks, at most so many, that are known already. It
// reports false, and takes none, if there are too few.
func (p *kvPool) take(prompt []Run, most, need int) (kvHeld, bool) {
	h := kvHeld{}
	woken := 0
	for _, r := range prompt {
		run := p.known[r.ID]
		if run == nil || most == 0 {
			break
		}
		n := min(run.blocks, r.Blocks, most)
		woken += max(0, n-run.inUse())
		if h.shared == nil {
			h.shared = make([]kvShare, 0, len(prompt))
		}
		h.shared = append(h.shared, kvShare{run, n})
		h.blocks += n
		if most -= n; n < r.Blocks {
			break
		}
	}
	h.own = need - h.blocks
	if p.used+woken+h.own > p.blocks {
		return kvHeld{}, false
	}
	for _, s := range h.shared {
		p.hold(s.run, 0, s.blocks)
	}
	p.used += h.own
	for p.used+p.unused > p.blocks {
		p.evict(p.used + p.unused - p.blocks)
	}
	return h, true
}

// evict forgets at most so many blocks, of those that were used together the longest time ago.
func (p *kvPool) evict(most int) {
	i := p.idle.next
	n := min(most, i.to-i.from)
	i.to -= n
	i.run.blocks -= n
	p.unused -= n
	if i.from == i.to {
		i.unlink()
		i.run.idle = slices.Delete(i.run.idle, 0, 1)
	}
	if i.run.blocks == 0 {
		delete(p.known, i.run.id)
	}
}

func (i *kvIdle) unlink() { i.prev.next, i.next.prev = i.next, i.prev }

// hold has a request that holds the first blocks of a run, was of them, hold more, n of them, which are known.
func (p *kvPool) hold(r *kvRun, was, n int) {
	for len(r.idle) > 0 {
		last := len(r.idle) - 1
		i := r.idle[last]
		woken := min(n, i.to) - i.from
		if woken <= 0 {
			break
		}
		i.from += woken
		p.used += woken
		p.unused -= woken
		if i.from == i.to {
			i.unlink()
			r.idle = r.idle[:last]
		}
	}
	if was == 0 {
		r.held = append(r.held, n)
	} else {
		r.held[slices.Index(r.held, was)] = n
	}
}

// remember lets later requests find the first n blocks of a prompt, which its request now has in memory.
func (p *kvPool) remember(h *kvHeld, prompt []Run, n int) {
	p.changes++
	at := len(h.shared) - 1 // the run that it may hold more of
	for n > h.blocks {
		was := 0
		if at < 0 || h.shared[at].blocks == prompt[at].Blocks {
			at++
			id := prompt[at].ID
			run := p.known[id]
			if run == nil {
				run = &kvRun{id: id}
				p.known[id] = run
			}
			h.shared = append(h.shared, kvShare{run: run})
		} else {
			was = h.shared[at].blocks
		}
		s := &h.shared[at]
		more := min(n-h.blocks, prompt[at].Blocks-was)
		s.blocks = was + more
		h.blocks += more
		h.own -= more
		if found := min(s.run.blocks, s.blocks) - was; found > 0 { // another has computed the same meanwhile: one of the two is enough
			p.used -= found
		}
		s.run.blocks = max(s.run.blocks, s.blocks)
		p.hold(s.run, was, s.blocks)
	}
}

// release gives back what a request holds. The end of a prompt is evicted before its beginning, which more prompts share.
func (p *kvPool) release(h *kvHeld) {
	p.changes++
	p.used -= h.own
	for _, s := range slices.Backward(h.shared) {
		r := s.run
		i := slices.Index(r.held, s.blocks)
		last := len(r.held) - 1
		r.held[i] = r.held[last]
		r.held = r.held[:last]
		left := r.inUse()
		if left >= s.blocks {
			continue
		}
		freed := &kvIdle{run: r, from: left, to: s.blocks, prev: p.idle.prev, next: &p.idle}
		freed.prev.next, p.idle.prev = freed, freed
		r.idle = append(r.idle, freed)
		p.used -= s.blocks - left
		p.unused += s.blocks - left
	}
	*h = kvHeld{}
}
