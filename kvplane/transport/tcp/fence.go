package tcp

import (
	"fmt"

	"pdrouter/kvplane/transport"
)

// Fence implements Fencer: it cuts every connection on which the agent writes here, and closes each later one at the
// first byte of a write.
func (t *Transport) Fence(agent string) error {
	t.mu.Lock()
	closed := t.closed
	t.barred[agent] = true
	t.mu.Unlock()
	if closed {
		return fmt.Errorf("kvplane: tcp fence of %s: %w", agent, transport.ErrClosed)
	}
	t.fence(func(c *inbound) bool { return c.agent == agent })
	return nil
}

// Admit implements Fencer.
func (t *Transport) Admit(agent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.barred, agent)
}

// Forget implements Fencer. Bytes land only under names that are known by their records, so connections that the agent
// opened after the fence become those of an unknown agent. Where names are only believed, this one stays barred.
func (t *Transport) Forget(agent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.agree == nil {
		return
	}
	delete(t.known, agent)
	delete(t.barred, agent)
	for c := range t.inbound {
		if c.agent == agent {
			c.bound = false
		}
	}
}

// fence cuts the connections that which, called with mu held, chooses, and waits until they land nothing any more.
func (t *Transport) fence(which func(*inbound) bool) {
	t.mu.Lock()
	var cut []*inbound
	for c := range t.inbound {
		if which(c) {
			c.fenced = true
			cut = append(cut, c)
		}
	}
	t.room.Broadcast()
	t.mu.Unlock()
	for _, c := range cut {
		_ = c.conn.Close() // its reader reports nothing: it was told
		<-c.done
	}
}
