package tcp

import (
	"fmt"

	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// join begins the session of a connection, and fences the older sessions of its agent.
func (c *inbound) join(g greeting, said claim) error {
	t := c.t
	t.mu.Lock()
	c.greeted = true
	t.handshakes--
	who, known := t.known[g.agent]
	if known && !who.proves(said, t.name, g.agent) {
		t.mu.Unlock()
		return fmt.Errorf("%w: %q", errName, g.agent)
	}
	c.agent, c.claim, c.bound = g.agent, said, known || t.agree == nil
	var err error
	for other := range t.inbound {
		switch {
		case !other.joined || other.agent != g.agent || other.bound != c.bound:
		case other.session > g.session && c.bound:
			c.fenced, err = true, transport.ErrClosed
		case other.session == g.session && err == nil:
			err = fmt.Errorf("%w: session %d is there", errFrame, g.session)
		}
	}
	if err == nil {
		c.joined, c.session = true, g.session
	}
	bound := c.bound
	t.mu.Unlock()
	if err == nil && bound {
		t.fence(func(other *inbound) bool {
			return other.joined && other.agent == g.agent && other.bound && other.session < g.session
		})
	}
	return err
}

// lives takes a peer's word for the process that it lives in, unless its record says otherwise. If that is not known
// yet, it is compared when it is, before anything is copied that lands.
func (c *inbound) lives(p metadata.Process) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if !c.process.IsZero() {
		return fmt.Errorf("%w: a second offer", errFrame)
	}
	if who, known := c.t.known[c.agent]; known && !who.offers(p) {
		return fmt.Errorf("process %d is not the one of the peer's record", p.PID)
	}
	c.process = p
	return nil
}

// lands says whether bytes may land now. A connection that has passed this before a fence is cut by it, and
// waited for.
func (c *inbound) lands(seq uint64) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	switch {
	case c.fenced || c.t.barred[c.agent]:
		return transport.ErrClosed
	case !c.bound:
		return fmt.Errorf("%w: bytes of write %d from %q, whose record is not known here", errFrame, seq, c.agent)
	}
	return nil
}

// landed counts bytes for the statistics.
func (c *inbound) landed(kind frameKind, n uint64) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.t.stats.Landed += n
	if kind == framePull {
		c.t.stats.MemoryBytes += n
	} else {
		c.t.stats.SocketBytes += n
	}
}

// ended strikes off the write in progress, whose bytes must all have landed.
func (c *inbound) ended(f frame) error {
	l := &c.lander
	if f.seq != l.low || f.count != l.sum {
		return fmt.Errorf("%w: the end of write %d after %d bytes; %d bytes of write %d have landed", errFrame, f.seq, f.count, l.sum, l.low)
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.fenced || c.t.closed {
		return transport.ErrClosed
	}
	l.low, l.sum = l.low+1, 0
	return nil
}
