package agent

import (
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
)

// simWrite is one write under way: pieces that leave the writer's memory and land in the target's, each at its time.
type simWrite struct {
	link    *simLink
	id      uint64
	attempt int
	notify  []byte
	chunks  []*simChunk
	open    int  // chunks that may still land
	ended   bool // its writer has been told
	over    bool // nothing of it lands any more
}

// simChunk is a part of a write.
type simChunk struct {
	write  *simWrite
	ranges []kvplane.Range
	tags   []uint64 // read when it left
	left   bool
	dead   bool // will never land
	done   bool
	second bool // takes two passes of the target's owner
}

// simPost names what may be posted once.
type simPost struct {
	from, to *simNode
	attempt  int
}

// landed says that every byte is in the target's memory.
func (w *simWrite) landed() bool {
	return !slices.ContainsFunc(w.chunks, func(c *simChunk) bool { return !c.done })
}

// Write implements Transport.
func (t *simTransport) Write(agent string, id uint64, ranges []kvplane.Range, notify []byte) error {
	return t.post(agent, id, func(*simLink) []kvplane.Range { return ranges }, notify)
}

// post begins a write.
func (t *simTransport) post(agent string, id uint64, of func(*simLink) []kvplane.Range, notify []byte) error {
	s := t.s
	l, err := t.link(agent)
	if err != nil {
		return err
	}
	if s.strike(faultPost) {
		return errSimPost
	}
	ranges := of(l)
	w := &simWrite{link: l, id: id, notify: slices.Clone(notify)}
	w.attempt = s.checkPost(t.node, l.to, ranges)
	l.writing = append(l.writing, w)
	s.writes[w] = true
	s.posts[simPost{t.node, l.to, w.attempt}] = w
	s.mix('w', uint64(t.node.record.Process.PID), uint64(l.to.record.Process.PID), uint64(w.attempt), uint64(len(ranges)))
	s.note("%s writes attempt %d to %s, %d ranges", t.node.record.Agent, w.attempt, agent, len(ranges))
	parts := min(1+s.rng.IntN(3), len(ranges))
	for i := range parts {
		w.chunks = append(w.chunks, &simChunk{write: w, ranges: slices.Clone(ranges[i*len(ranges)/parts : (i+1)*len(ranges)/parts])})
	}
	w.open = parts
	w.befall(w.fate())
	return nil
}

// befall has things happen while the write is under way.
func (w *simWrite) befall(takes time.Duration) {
	from, to := w.link.from, w.link.to
	s := from.s
	if s.strike(faultCrash) && s.dice[faultCrash].IntN(4) == 0 {
		e := from.run.engine
		if s.dice[faultCrash].IntN(4) == 0 {
			e = to.run.engine
		}
		s.after(s.extent(faultCrash, takes), func() { s.crash(e) })
	}
	if s.strike(faultPauseRank) && s.dice[faultPauseRank].IntN(4) == 0 {
		n, d := to, s.extent(faultPauseRank, 4*time.Second)
		if s.dice[faultPauseRank].IntN(3) == 0 {
			n = from
		}
		s.after(s.extent(faultPauseRank, 2*takes+300*time.Millisecond), func() { n.halt(d) })
	}
	if s.strike(faultConnection) && s.dice[faultConnection].IntN(4) == 0 {
		s.after(s.extent(faultConnection, takes), func() { w.link.lose() })
	}
}

// fate draws how the write goes and plans it.
func (w *simWrite) fate() time.Duration {
	s := w.link.from.s
	pace := s.some(2 * time.Millisecond)
	switch {
	case s.strike(faultStuck):
		pace = s.extent(faultStuck, 40*time.Second)
	case s.strike(faultSlow):
		pace = s.extent(faultSlow, 4*time.Second)
	}
	breaks := len(w.chunks) + 1
	if s.strike(faultBreak) {
		breaks = s.dice[faultBreak].IntN(len(w.chunks) + 1)
	}
	at := time.Duration(0)
	for i, c := range w.chunks {
		if i >= breaks {
			break
		}
		at += 1 + pace/time.Duration(len(w.chunks))
		s.later(at, func() { c.leave() })
	}
	if breaks <= len(w.chunks) {
		s.later(at+s.some(time.Millisecond), func() {
			if w.ended {
				return
			}
			s.counts.reach("write failed")
			w.fail()
			if s.strike(faultConnection) {
				w.link.lose()
			}
			if s.strike(faultPauseRank) { // its target hears of it and then stops
				d := s.times.NetDelay + s.extent(faultPauseRank, 4*time.Second)
				s.after(2*time.Millisecond+s.extent(faultPauseRank, 100*time.Millisecond), func() { w.link.to.halt(d) })
			}
		})
	}
	return pace
}

// later is after, but what waits for long when the faults end comes then.
func (s *sim) later(d time.Duration, do func()) { s.after(s.prompt(d), do) }

// prompt shortens a pause that would go on for long when the faults end.
func (s *sim) prompt(d time.Duration) time.Duration {
	if at := s.now + d; !s.calm && at > s.opts.until+time.Second {
		d = s.opts.until + time.Duration(s.rng.Int64N(int64(time.Second))) - s.now
	}
	return d
}

// leave reads the source. A dead writer's card reads no more; a paused one's goes on.
func (c *simChunk) leave() {
	w := c.write
	from, to := w.link.from, w.link.to
	s := from.s
	switch {
	case c.dead || c.left:
		return
	case w.ended:
		c.drop()
		return
	case from.dead:
		c.drop()
		return
	case w.link.nobody() && !w.link.copies():
		w.fail()
		w.link.broken = true
		return
	case !s.reaches(from, to): // it waits for the network, until the transport gives up
		s.later(50*time.Millisecond, func() { c.leave() })
		return
	}
	c.left = true
	for _, r := range c.ranges {
		at := int(r.Local - from.memory.base)
		s.checkSource(from, w.attempt, at, int(r.Length))
		c.tags = append(c.tags, from.memory.tags[at:at+int(r.Length)]...)
	}
	d := 10*time.Microsecond + s.some(50*time.Microsecond)
	if s.strike(faultTail) { // less than the net delay, whichever clock measures it
		d = s.extent(faultTail, s.times.NetDelay*85/100)
	}
	s.after(d, func() { c.arrive() })
}

// arrive is when the bytes reach the target's host.
func (c *simChunk) arrive() {
	w := c.write
	to := w.link.to
	switch {
	case c.dead:
	case w.link.nobody() && !w.link.copies():
		w.fail()
		c.drop()
	case to.s.fences && to.t.barred[w.link.as]:
		to.s.counts.reach("write refused by a fence")
		w.cut()
		w.link.lose()
	case to.s.polled && to.s.strike(faultNextPoll):
		if s := to.s; s.weight[faultSecondPass] > 0 && s.dice[faultSecondPass].IntN(2) == 0 {
			c.second = true
			s.counts.faults[faultSecondPass]++
		}
		to.t.landing = append(to.t.landing, c)
		if to.polls() {
			to.kick(to.s.some(time.Millisecond))
		}
	default:
		c.land()
	}
}

// copies says that the writer's process copies by itself, whatever the target's agent does: only death ends that.
func (l *simLink) copies() bool {
	return l.from.s.oneHost && !l.from.s.fences && !l.to.dead && !l.from.dead
}

// land puts the bytes into the target's memory.
func (c *simChunk) land() {
	w := c.write
	from, to := w.link.from, w.link.to
	if c.dead || c.done || w.link.nobody() && !w.link.copies() {
		return
	}
	c.done = true
	tags := c.tags
	for _, r := range c.ranges {
		at := int(r.Remote - to.memory.base)
		to.s.checkLanding(from, to, w.attempt, at, tags[:r.Length])
		copy(to.memory.tags[at:], tags[:r.Length])
		tags = tags[r.Length:]
	}
	switch {
	case from.dead:
		to.s.counts.reach("landed after its writer's death")
	case w.ended:
		to.s.counts.reach("landed after its failure was reported")
	case w.link.lost:
		to.s.counts.reach("landed after its handle was given up")
	}
	w.closed()
	if !w.landed() || w.ended {
		return
	}
	if to.s.fences { // the notification travels behind the bytes
		w.notified()
		to.s.after(10*time.Microsecond, func() { w.end(nil) })
		return
	}
	from.t.flushed = append(from.t.flushed, w) // its own poll sends it
	if from.polls() {
		from.kick(to.s.some(time.Millisecond))
	}
}

// notified sends what goes with the write.
func (w *simWrite) notified() {
	s := w.link.from.s
	if w.link.from.dead && !s.fences || s.strike(faultNotify) {
		return
	}
	s.deliver(w.link, w.notify)
}

// closed counts a chunk that is at its end.
func (w *simWrite) closed() {
	if w.open--; w.open == 0 {
		w.over = true
		delete(w.link.from.s.writes, w)
	}
}

func (c *simChunk) drop() {
	if !c.dead && !c.done {
		c.dead = true
		c.write.closed()
	}
}

// fail ends the write with an error. What has not left never does; what has lands as planned, which may be later.
func (w *simWrite) fail() {
	if w.ended {
		return
	}
	for _, c := range w.chunks {
		if !c.left {
			c.drop()
		}
	}
	w.end(errSimLost)
}

// cut ends what is under way on the target's side: nothing of it lands any more.
func (w *simWrite) cut() {
	s := w.link.from.s
	for _, c := range w.chunks {
		c.drop()
	}
	s.after(s.some(300*time.Microsecond), func() { w.fail() })
}

// cutTails drops what has left over some of the links to a node and is on its way.
func (s *sim) cutTails(of func(*simLink) bool, to *simNode) {
	for w := range s.writes { // every one alike: the order does not matter
		if of(w.link) && w.link.to == to && w.link.agent == to.t.name {
			for _, c := range w.chunks {
				if c.left {
					c.drop()
				}
			}
		}
	}
}

// end tells the writer. Its owner hears of it at its next poll.
func (w *simWrite) end(err error) {
	if w.ended {
		return
	}
	w.ended = true
	l := w.link
	l.writing = slices.DeleteFunc(l.writing, func(x *simWrite) bool { return x == w })
	if l.leaving && len(l.writing) == 0 {
		delete(l.from.t.peers, l.agent)
		l.from.t.links = slices.DeleteFunc(l.from.t.links, func(x *simLink) bool { return x == l })
	}
	l.from.s.note("write of attempt %d from %s to %s ends: %v", w.attempt, l.as, l.agent, err)
	l.from.arrive(transport.Incoming{Kind: transport.WriteEnded, Agent: l.agent, ID: w.id, Err: err}, true)
}

// die ends a transport with its process: what had left lands, and its peers find out.
func (t *simTransport) die() {
	s := t.s
	for _, l := range t.links {
		for _, w := range slices.Clone(l.writing) {
			for _, c := range w.chunks {
				if !c.left {
					c.drop()
				}
			}
		}
	}
	for _, c := range t.landing {
		c.drop()
	}
	silent := s.strike(faultSilent)
	for _, n := range s.nodes {
		l := n.t.peers[t.name]
		if l == nil || n.dead {
			continue
		}
		d := s.some(5 * time.Millisecond)
		switch {
		case silent:
			d = s.extent(faultSilent, 8*time.Second)
		case !s.fences:
			l.broken = true
		}
		s.later(d, func() {
			for _, w := range slices.Clone(l.writing) {
				w.fail()
			}
			if s.fences {
				l.lose()
			} else {
				l.broken = true
			}
		})
	}
}
