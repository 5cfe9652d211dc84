package agent

import (
	"time"

	"pdrouter/kvplane/internal/core"
	"pdrouter/metadata"
)

// settled checks, when nothing is left to happen, that nothing is held.
func (s *sim) settled() {
	if s.open > 0 {
		s.fail("L1", "%d requests have no answer", s.open)
	}
	for _, e := range s.engines {
		for _, r := range e.runs {
			if !r.dead {
				r.settled()
			}
		}
	}
}

// settled checks that an engine and its owners hold nothing and wait for nothing.
func (r *simRun) settled() {
	s := r.s
	for _, a := range s.attempts {
		if l := r.legs[a.id]; l != nil {
			s.fail("L2", "%s still has attempt %d: %v", r.inc.ID(), a.number, l.blocks)
		}
	}
	for _, owner := range r.pool.owner {
		if owner != 0 {
			s.fail("L2", "%s keeps blocks of attempt %d", r.inc.ID(), owner)
		}
	}
	r.sched.settled()
	for _, n := range r.nodes {
		st := n.owner.status()
		regs := 0
		for _, in := range n.owner.producer.Sessions {
			for _, reg := range in.Requests {
				if reg.State != core.RequestEnded {
					regs++
				}
			}
		}
		links := 0
		for _, out := range n.owner.consumer.Sessions {
			links += len(out.Producers)
		}
		switch {
		case st.Offers+st.Expectations+st.HeldBlocks+st.PinnedBlocks+st.Writing+regs+links+len(st.Quarantined) > 0:
			s.fail("L2", "%s holds %+v, %d write requests not ended, %d links", n.record.Agent, st, regs, links)
		case len(n.owner.producer.Outgoing)+len(n.owner.consumer.Incoming)+n.owner.heldMessages+len(n.owner.sent) > 0:
			s.fail("L2", "%s remembers %d offers, %d expectations, %d messages, %d sums", n.record.Agent,
				len(n.owner.producer.Outgoing), len(n.owner.consumer.Incoming), n.owner.heldMessages, len(n.owner.sent))
		case n.owner.next() > 0:
			s.fail("L3", "%s is idle and has a timer", n.record.Agent)
		case s.polled && n.polls() && n.clock()-n.owner.active > 2*grace:
			s.fail("L3", "%s is idle and polls", n.record.Agent)
		}
	}
}

// unsettled says what is still going on long after the faults have ended.
func (s *sim) unsettled() {
	if s.open > 0 {
		s.fail("L1", "%d requests have no answer %v after the faults", s.open, s.settle())
	}
	for _, e := range s.engines {
		for _, r := range e.runs {
			if r.dead {
				continue
			}
			for _, a := range s.attempts {
				if l := r.legs[a.id]; l != nil {
					s.fail("L2", "%s still has attempt %d after %v: state %d, %v", r.inc.ID(), a.number, s.settle(), l.state, l.blocks)
				}
			}
			for _, n := range r.nodes {
				if at := n.owner.next(); at > 0 {
					s.fail("L3", "%s is never idle: %+v, next in %v", n.record.Agent, n.owner.status(), at-n.clock())
				}
			}
		}
	}
	s.fail("L3", "the world does not come to rest")
}

// heal ends the faults. What was late comes, what was cut off is reachable, what died starts anew.
func (s *sim) heal() {
	s.calm = true
	s.note("the faults end")
	clear(s.cuts)
	for _, n := range s.nodes {
		if n.pause > s.now {
			n.pause = s.now
			n.wake = 0
			n.kick(1)
		}
	}
	for _, e := range s.engines {
		for _, r := range e.runs {
			if r.over && !r.dead {
				r.kill(false)
			}
		}
		if r := e.current(); r.sched.lossy && !r.dead { // what was lost is not said again: blocks stay held until the engine is started anew
			s.counts.reach("restarted for what was lost")
			r.kill(false)
		}
		if e.current().dead {
			e.start()
		}
		s.directory.publish(s, e.current())
	}
	for _, e := range s.engines {
		for _, r := range e.runs {
			if r.dead && !s.fences && !s.oneHost && !s.serial { // else everybody finds out
				s.after(s.some(4e9), func() { s.reap(r) })
			}
		}
	}
	late := max(4*s.times.Wait, s.ages-s.now) + 2*s.times.Lease // then the last delayed message has come and has had its effect
	s.after(late, s.overdue)
	// A healthy pair must serve at the first attempt, once what the faults left behind is over.
	at := late
	for _, p := range s.engines {
		for _, d := range s.engines {
			if p.role != metadata.Prefill || d.role != metadata.Decode {
				continue
			}
			at += s.times.Deadline
			s.after(at, func() { s.sendProbe(p, d) })
		}
	}
}

// sendProbe sends the request that a healthy pair must serve at the first attempt. Where tables are small, what a slow prefill still offers
// for requests whose cancel was lost may fill them: that is waited for.
func (s *sim) sendProbe(p, d *simEngine) {
	if s.caps != (core.Bounds{}) {
		for _, n := range p.current().nodes {
			if _, offers, _ := n.owner.producer.Counts(); offers >= s.caps.Outgoing {
				s.after(s.times.Lease, func() { s.sendProbe(p, d) })
				return
			}
		}
	}
	q := s.probe(p, d)
	q.probe = true
	s.send(q)
}

// probe is a request between two engines that needs all of its tokens.
func (s *sim) probe(p, d *simEngine) *simRequest {
	q := s.drawRequest()
	q.hit, q.pair = 0, [2]*simEngine{p, d}
	return q
}

// overdue checks, when the faults are long over, that what they left behind is over too: what was begun a lease and a
// wait ago has no reason to be there.
func (s *sim) overdue() {
	for _, e := range s.engines {
		r := e.current()
		for _, a := range s.attempts {
			l := r.legs[a.id]
			if l == nil || l.state != legPlaned {
				continue
			}
			last := time.Duration(0)
			for _, x := range l.ranks {
				last = max(last, x.at)
			}
			if last+s.times.Lease+s.times.Wait+5*time.Second < s.now {
				s.fail("L2", "%s still has attempt %d, begun at %v", r.inc.ID(), a.number, last)
			}
		}
	}
}
