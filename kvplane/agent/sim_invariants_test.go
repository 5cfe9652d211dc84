package agent

import (
	"fmt"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan"
	"pdrouter/metadata"
)

// reported takes an agent's report about one transfer, checks it, and goes on as an engine's scheduler does.
func (s *sim) reported(n *simNode, r kvplane.Report) {
	a := s.byID[r.ID]
	l := n.run.legs[r.ID]
	s.mix('r', uint64(n.record.Process.PID), uint64(r.Kind), uint64(r.Reason))
	s.note("%s reports %s %s of attempt %d (%s) %d of %d", n.record.Agent, r.Kind, r.Reason, a.number, r.Detail, r.K, r.N)
	s.counts.reach(r.Kind.String() + ": " + r.Reason.String())
	s.checkSilence(n, a, r)
	defer n.run.sched.hears(n, r)
	if r.Order == kvplane.QueueOrder {
		return
	}
	if l == nil {
		if r.Kind == kvplane.Sent { // aborted before it was finished: nothing is held
			return
		}
		s.fail("S9", "%s reports %s of attempt %d, which it does not have", n.record.Agent, r.Kind, a.number)
	}
	x := l.ranks[n.rank]
	for _, before := range x.said {
		if before == r.Kind || before != kvplane.Failed || r.Kind != kvplane.Reusable {
			s.fail("S9", "%s reports %s of attempt %d after %s", n.record.Agent, r.Kind, a.number, before)
		}
	}
	x.said = append(x.said, r.Kind)
	switch r.Kind {
	case kvplane.Ready:
		s.checkCounted(n, l, r)
		s.checkReady(n, l)
	case kvplane.Failed:
		delete(n.abandoned, r.ID)
	case kvplane.Reusable:
		if !slices.Contains(x.said, kvplane.Failed) {
			s.fail("S9", "%s reports reusable of attempt %d before failed", n.record.Agent, a.number)
		}
		s.checkSafe(n, l)
	case kvplane.Sent:
		delete(n.abandoned, r.ID)
		s.checkSent(n, l, r)
	}
}

// checkReady is S1 on one rank: all that decode needs is here, and of this transfer.
func (s *sim) checkReady(n *simNode, l *simLeg) {
	q, a := l.attempt.request, l.attempt
	for g, list := range l.blocks {
		from := max(min(a.hit, q.tokens), list.First)
		if w := s.model.window(g); w > 0 {
			from = max(from, q.tokens-w)
		}
		n.memory.each(g, list, from, q.tokens, func(at int, tag uint64) {
			if got, want := n.memory.tags[at], tag+simTag(a.number, 0, 0, 0, 0); got != want {
				s.fail("S1", "attempt %d is ready on %s, which holds %s; want %s", a.number, n.record.Agent, simTagName(got), simTagName(want))
			}
		})
	}
}

func simTagName(tag uint64) string {
	return fmt.Sprintf("attempt %d layer %d plane %d head %d token %d", simTagAttempt(tag), tag>>32&0xff, tag>>28&0xf, tag>>20&0xff, tag&0xfffff)
}

// checkCounted is S3: as many producers were counted as the layouts say, whatever any message said.
func (s *sim) checkCounted(n *simNode, l *simLeg, r kvplane.Report) {
	if a := l.attempt; a.hit >= a.request.tokens {
		return
	}
	want := s.writers(l.attempt.p.engine, n)
	if r.N != want || r.K != want {
		s.fail("S3", "%s counted %d of %d producers of attempt %d; want %d", n.record.Agent, r.K, r.N, l.attempt.number, want)
	}
}

// writers counts the ranks of P that write for a consumer.
func (s *sim) writers(p *simEngine, d *simNode) int {
	n := 0
	for pp := range p.shape.pp {
		for tp := range p.shape.tp {
			if s.writesFor(p, metadata.Rank{PP: pp, TP: tp}, d) {
				n++
			}
		}
	}
	return n
}

// writesFor says, head by head and layer by layer, whether a rank of P writes for a consumer: of those in the
// consumer's slice that hold a head, the first.
func (s *sim) writesFor(p *simEngine, rank metadata.Rank, d *simNode) bool {
	h, size, model := &d.run.engine.shape, p.shape.tp, s.model.heads
	layers := p.shape.stages[rank.PP]
	if !slices.ContainsFunc(h.stages[d.rank.PP], func(l int) bool { return slices.Contains(layers, l) }) {
		return false
	}
	for head := d.memory.first; head < d.memory.first+d.memory.heads; head++ {
		for tp := range size {
			first := tp * model / size
			if plan.InSlice(tp, d.rank.TP, size, h.tp) && head >= first && head < first+max(1, model/size) {
				if tp == rank.TP {
					return true
				}
				break
			}
		}
	}
	return false
}

// checkSafe looks for bytes on their way into blocks that were said to be safe.
func (s *sim) checkSafe(n *simNode, l *simLeg) {
	for w := range s.writes { // any of them is a failure: the order does not matter
		if n.t.barred[w.link.as] || w.link.nobody() && !w.link.copies() {
			continue // it will be refused
		}
		if w.link.to == n && w.attempt == l.attempt.number && !w.over {
			s.fail("S2", "attempt %d is reusable on %s, but a write of %s is under way", w.attempt, n.record.Agent, w.link.from.record.Agent)
		}
	}
}

// checkSent is S5: no consumer is owed anything, or nothing is in progress.
func (s *sim) checkSent(n *simNode, l *simLeg, r kvplane.Report) {
	if w := n.writing(l.attempt.number); w != nil {
		s.fail("S5", "%s has sent attempt %d, but it writes to %s", n.record.Agent, w.attempt, w.link.to.record.Agent)
	}
	x := l.ranks[n.rank]
	if r.Reason == kvplane.LeaseOver && n.clock()-x.given < s.times.Lease {
		s.fail("S5", "%s ended the lease of attempt %d after %v", n.record.Agent, l.attempt.number, n.clock()-x.given)
	}
	if r.Reason != 0 {
		return
	}
	if l.attempt.hit >= l.attempt.request.tokens {
		return
	}
	for _, d := range l.attempt.d.nodes {
		if w := s.posts[simPost{n, d, l.attempt.number}]; s.writesFor(n.run.engine, n.rank, d) && (w == nil || !w.landed()) {
			s.fail("S5", "%s has sent attempt %d to all, but %s has not got its part", n.record.Agent, l.attempt.number, d.record.Agent)
		}
	}
}

// checkPost checks a write when it is posted: whose blocks it reads, for whom, how often and where to.
func (s *sim) checkPost(from, to *simNode, ranges []kvplane.Range) int {
	number := 0
	for _, r := range ranges {
		if at := r.Local - from.memory.base; at >= uint64(len(from.memory.tags)) || r.Length > uint64(len(from.memory.tags))-at {
			s.fail("S2", "%s reads outside of its memory: %+v", from.record.Agent, r)
		}
		if at := r.Remote - to.memory.base; at >= uint64(len(to.memory.tags)) || r.Length > uint64(len(to.memory.tags))-at {
			s.fail("S2", "%s writes outside of the memory of %s: %+v", from.record.Agent, to.record.Agent, r)
		}
		if number == 0 {
			number = from.memory.owner(int(r.Local - from.memory.base))
		}
	}
	if number == 0 {
		s.fail("S5", "%s posts a write from blocks that are free", from.record.Agent)
	}
	a := s.attempts[number-1]
	switch l := from.run.legs[a.id]; {
	case l == nil || l.state != legPlaned || l.ranks[from.rank].given == 0:
		s.fail("S4", "%s writes attempt %d, which it has not offered", from.record.Agent, number)
	case a.d.inc != to.run.inc:
		s.fail("S4", "%s writes attempt %d to %s; it was announced for %s", from.record.Agent, number, to.record.Agent, a.d.inc.ID())
	}
	if s.posts[simPost{from, to, number}] != nil {
		s.fail("S6", "%s writes attempt %d to %s a second time", from.record.Agent, number, to.record.Agent)
	}
	return number
}

// owner returns the attempt that owns a byte.
func (m *simMemory) owner(at int) int {
	if m.block[at] < 0 {
		return 0
	}
	return m.run.pool.owner[m.block[at]]
}

// checkSource is S5 at the moment when bytes leave.
func (s *sim) checkSource(n *simNode, attempt, at, length int) {
	for i := at; i < at+length; i++ {
		if owner := n.memory.owner(i); owner != attempt && n.memory.block[i] >= 0 {
			s.fail("S5", "%s sends attempt %d from a block that belongs to attempt %d", n.record.Agent, attempt, owner)
		}
	}
}

// checkLanding is S2: bytes land only where D owns the block for this transfer and waits for it.
func (s *sim) checkLanding(from, to *simNode, attempt, at int, tags []uint64) {
	id := s.attempts[attempt-1].id
	l := to.run.legs[id]
	for i := range tags {
		if to.memory.block[at+i] < 0 {
			continue // between blocks
		}
		if owner := to.memory.owner(at + i); owner != attempt || l == nil {
			s.fail("S2", "%s of attempt %d lands in a block of %s that belongs to attempt %d", from.record.Agent, attempt, to.record.Agent, owner)
		}
	}
	if x := l.ranks[to.rank]; slices.Contains(x.said, kvplane.Ready) || slices.Contains(x.said, kvplane.Reusable) {
		s.fail("S2", "%s of attempt %d lands in %s, which has reported %v", from.record.Agent, attempt, to.record.Agent, x.said)
	}
}

// checkVoid is S7: nothing is sent to a generation that is known to be over.
func (n *simNode) checkVoid(does string, inc metadata.Incarnation) {
	if n.void(inc) {
		n.s.fail("S7", "%s %s %s, though it was told of generation %d", n.record.Agent, does, inc.ID(), n.known[inc.Engine])
	}
}

// checkAbandoned: what nobody wants ends at once on D; on P as soon as no write is in progress.
func (n *simNode) checkAbandoned() {
	s := n.s
	for id, at := range n.abandoned { // any of them is a failure: the order does not matter
		l := n.run.legs[id]
		if l == nil || len(l.ranks[n.rank].said) > 0 {
			delete(n.abandoned, id)
			continue
		}
		x := l.ranks[n.rank]
		if x.at == 0 || s.now < max(at, x.at, n.pause)+time.Second {
			continue
		}
		if n.writing(l.attempt.number) == nil {
			s.fail("L1", "%s was told to give attempt %d up and does not say how that ended", n.record.Agent, l.attempt.number)
		}
	}
}

// writing finds a write of an attempt whose end the node has not been told.
func (n *simNode) writing(attempt int) *simWrite {
	for _, l := range n.t.links {
		for _, w := range l.writing {
			if w.attempt == attempt {
				return w
			}
		}
	}
	return nil
}
