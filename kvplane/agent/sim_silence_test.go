package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
)

// simPrompt is the longest that a message takes in a network without faults, and more.
const simPrompt = time.Millisecond

// trouble notes that something has befallen what two nodes say to each other.
func (s *sim) trouble(a, b *simNode) {
	s.troubles[[2]*simNode{a, b}], s.troubles[[2]*simNode{b, a}] = s.now, s.now
}

// cutOff says that a node cannot answer another one: what it had in progress over a lost connection has not ended.
func (n *simNode) cutOff(from *simNode) bool {
	l := n.t.peers[from.t.name]
	return l != nil && (l.leaving || l.lost || l.broken)
}

// checkSilence is L5: a producer is given up for its silence only if it was silent. A process that was stopped for a
// part of the time that D waits answers in the rest of it.
func (s *sim) checkSilence(n *simNode, a *simAttempt, r kvplane.Report) {
	if r.Kind != kvplane.Failed || r.Reason != kvplane.PeerGone || r.Detail != "no answer" {
		return
	}
	if n.lapsed[r.ID] {
		return // it was given up while it was queued; the engine hears so again when it expects it
	}
	n.lapsed[r.ID] = r.Groups == nil
	s.counts.reach("given up for its silence")
	const slack = 100 * time.Millisecond
	bound := core.Silence * min(s.times.Lost, s.times.Beat) // on D's clock, which may be fast or slow
	since, surely := s.now-bound*11/10-slack, s.now-bound*9/10+slack
	if n.troubled > since || n.pause > since {
		return
	}
	for _, p := range a.p.nodes {
		switch {
		case p.dead, p.closing, p.void(n.run.inc), n.void(a.p.inc):
		case s.troubles[[2]*simNode{n, p}] > since, p.troubled > since:
		case !s.reaches(n, p), !s.reaches(p, n):
		case p.cutOff(n):
		case p.pause > s.now-slack && p.paused < surely:
		default:
			continue
		}
		return
	}
	s.fail("L5", "%s gives attempt %d up for the silence of %s, which was there", n.record.Agent, a.number, a.p.inc.ID())
}
