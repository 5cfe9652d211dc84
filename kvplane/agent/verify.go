package agent

import (
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/wire"
)

// roomOf says how many blocks a peer's own record has in each group: it can name no others.
func (o *owner) roomOf(p *peer) []int {
	if p.room == nil {
		p.room = []int{}
		if n, err := plan.Blocks(p.record); err == nil {
			p.room = n
		}
	}
	return p.room
}

// parse decodes what a peer sent, within what its record allows.
func (o *owner) parse(p *peer, body []byte) (*wire.Message, error) {
	if len(body) == 0 || wire.Kind(body[0]) != wire.KindWriteRequest {
		return wire.Parse(body)
	}
	return wire.ParseWithin(body, o.roomOf(p))
}

// budgetOf is how many blocks the write requests of one peer may have together before they are posted. Each block
// is in one that its owner waits for, and perhaps in one whose not_begun has not arrived yet.
func (o *owner) budgetOf(p *peer) int {
	sum := 0
	for _, n := range o.roomOf(p) {
		sum = min(sum+n, 1<<30)
	}
	return 2 * sum
}

// session returns what this agent has in common with a peer. It is computed once for each peer.
func (o *owner) session(p *peer) (*wire.Session, error) {
	if p.session == nil && p.sessionErr == nil {
		p.session, p.sessionErr = wire.NewSession(o.host.agree, o.self, p.record)
	}
	return p.session, p.sessionErr
}

// verified says whether a peer's message is its own.
func (o *owner) verified(p *peer, message []byte) bool {
	s, err := o.session(p)
	return err == nil && s.Verify(message)
}
