package tcp

import (
	"fmt"

	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// inboundSession is what the connections of one session share on the receiving side. Guarded by Transport.mu, but for what is
// constant.
type inboundSession struct {
	agent   string // constant
	number  uint64 // constant
	streams []*inbound
	low     uint64            // the write that ends next
	landed  map[uint64]uint64 // bytes of the writes that have not ended, by number
	waiting bool              // the first connection waits for the bytes of the others
	source  *source           // the writer's memory; nil: not offered, or refused
	process metadata.Process  // whose memory it is; zero: not offered
	live    int               // connections that have not ended
	over    bool              // one of its connections has ended
}

// join gives a connection its place in its session, and fences the agent's older sessions.
func (c *inbound) join(g greeting, said claim) error {
	t := c.t
	t.mu.Lock()
	who, known := t.known[g.agent]
	if known && !who.proves(said, t.name, g.agent) {
		t.mu.Unlock()
		return fmt.Errorf("%w: %q", errName, g.agent)
	}
	c.agent, c.claim, c.bound = g.agent, said, known || t.agree == nil
	var s *inboundSession
	for other := range t.inbound {
		switch {
		case other.session == nil || other.agent != g.agent || other.bound != c.bound:
		case other.session.number > g.session && c.bound:
			c.fenced = true
		case other.session.number == g.session:
			s = other.session
		}
	}
	var err error
	switch {
	case c.fenced:
		err = transport.ErrClosed
	case s == nil && g.stream == 0:
		s = &inboundSession{agent: g.agent, number: g.session, streams: make([]*inbound, g.streams), low: 1, landed: make(map[uint64]uint64)}
	case s == nil || s.over || s.streams[0].fenced:
		err = transport.ErrClosed // it has ended
	case len(s.streams) != g.streams || s.streams[g.stream] != nil:
		err = fmt.Errorf("%w: stream %d of %d is there", errFrame, g.stream, g.streams)
	}
	if err == nil {
		s.streams[g.stream] = c
		s.live++
		c.session, c.stream = s, g.stream
	}
	bound := c.bound
	t.mu.Unlock()
	if err == nil && bound {
		t.fence(func(other *inbound) bool {
			return other.session != nil && other.agent == g.agent && other.bound && other.session.number < g.session
		})
	}
	return err
}

// lives takes a peer's word for the process that it lives in, unless its record says otherwise. If that is not known
// yet, it is compared when it is, before anything is copied that lands.
func (c *inbound) lives(p metadata.Process) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if !c.session.process.IsZero() {
		return fmt.Errorf("%w: a second offer", errFrame)
	}
	if who, known := c.t.known[c.agent]; known && !who.offers(p) {
		return fmt.Errorf("process %d is not the one of the peer's record", p.PID)
	}
	c.session.process = p
	return nil
}

// part cuts the other connections of a connection that has ended: the peer connects anew.
func (c *inbound) part() {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.session == nil {
		return
	}
	c.session.over = true
	if c.session.live--; c.session.live == 0 {
		c.session.source.close()
	}
	for _, other := range c.session.streams {
		if other != nil && other != c {
			other.fenced = true
			_ = other.conn.Close() // its reader reports nothing
		}
	}
	c.t.room.Broadcast()
}

// lands says whether bytes of a write may land now. A connection that has passed this before a fence is cut by it, and
// waited for.
func (c *inbound) lands(seq uint64) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	s, ahead := c.session, uint64(1) // one connection has its writes one after the other
	if len(s.streams) > 1 {
		ahead = maxPending
	}
	switch {
	case c.fenced || c.t.barred[c.agent]:
		return transport.ErrClosed
	case !c.bound:
		return fmt.Errorf("%w: bytes of write %d from %q, whose record is not known here", errFrame, seq, c.agent)
	case seq < s.low || seq-s.low >= ahead:
		return fmt.Errorf("%w: bytes of write %d during write %d", errFrame, seq, s.low)
	}
	return nil
}

// landed counts bytes of a write. whole says that they are all of their frame, so that the write's end may count on
// them; of a frame that was cut only the statistics hear. An error says that the write has ended without them.
func (c *inbound) landed(kind frameKind, seq, n uint64, whole bool) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.t.stats.Landed += n
	if kind == framePull {
		c.t.stats.MemoryBytes += n
	} else {
		c.t.stats.SocketBytes += n
	}
	s := c.session
	switch {
	case !whole:
		return nil
	case seq < s.low:
		return fmt.Errorf("%w: %d bytes of write %d after its end", errFrame, n, seq)
	}
	s.landed[seq] += n
	if s.waiting && seq == s.low {
		c.t.room.Broadcast()
	}
	return nil
}

// ended waits until every byte of a write has landed, those that come over other connections included, and strikes the
// write off.
func (c *inbound) ended(f frame) error {
	t, s := c.t, c.session
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { s.waiting = false }()
	for {
		n := s.landed[s.low]
		switch {
		case f.seq != s.low || n > f.count || n < f.count && len(s.streams) == 1:
			return fmt.Errorf("%w: the end of write %d after %d bytes; %d bytes of write %d have landed", errFrame, f.seq, f.count, n, s.low)
		case c.fenced || t.closed:
			return transport.ErrClosed
		case n == f.count:
			delete(s.landed, s.low)
			s.low++
			return nil
		}
		s.waiting = true
		t.room.Wait()
	}
}
