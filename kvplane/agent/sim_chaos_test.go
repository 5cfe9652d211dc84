package agent

import (
	"fmt"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// draw makes the world of a seed.
func (s *sim) draw() {
	s.swarm()
	s.fences = s.rng.IntN(2) == 0
	s.polled = !s.fences && s.rng.IntN(4) > 0
	if s.afterPolls && s.rng.IntN(4) > 0 {
		s.fences, s.polled = false, true
	}
	s.serial = s.rng.IntN(2) == 0
	s.oneHost = s.rng.IntN(3) == 0
	s.tickets = s.rng.IntN(2) == 0
	s.times = kvplane.Times{Lease: 6 * time.Second, Wait: 5 * time.Second, Deadline: 3 * time.Second, Queue: 10 * time.Second}
	if s.rng.IntN(4) == 0 {
		s.times = kvplane.Times{}
	}
	s.hurry()
	s.times = s.times.WithDefaults()
	s.model = s.drawModel()
	for i := range 1 + s.rng.IntN(2) {
		s.addEngine(fmt.Sprintf("p%d", i), metadata.Prefill)
	}
	for i := range 1 + s.rng.IntN(2) {
		s.addEngine(fmt.Sprintf("d%d", i), metadata.Decode)
	}
	n := 2 + s.rng.IntN(simRequests-1)
	for i := range n {
		at := s.some(7 * time.Second)
		if s.rng.IntN(3) == 0 {
			at = s.some(200 * time.Millisecond) // many at once
		}
		q := s.drawRequest()
		if s.opts.only != 0 && s.opts.only>>i&1 == 0 {
			continue
		}
		s.at(at, func() { s.send(q) })
	}
	s.chaos()
	s.bursts()
}

func (s *sim) addEngine(name string, role metadata.Role) {
	e := &simEngine{s: s, name: name, role: role, shape: s.drawShape()}
	e.shape.odd = len(s.engines) == s.odd
	s.engines = append(s.engines, e)
	e.start()
}

// chaos plans what befalls machines, connections and the directory.
func (s *sim) chaos() {
	moment := func(f simFault) time.Duration { return s.extent(f, s.opts.until-3*time.Second) }
	for _, e := range s.engines {
		for range 2 {
			if s.strike(faultCrash) || s.weight[faultCrash] > 0 && s.dice[faultCrash].IntN(4) == 0 {
				s.at(moment(faultCrash), func() { s.crash(e) })
			}
			if s.strike(faultPause) {
				at, d := moment(faultPause), s.extent(faultPause, 6*time.Second)
				s.at(at, func() {
					for _, n := range e.current().nodes {
						n.halt(d)
					}
				})
			}
			if s.strike(faultPauseRank) {
				i, at, d := s.dice[faultPauseRank].IntN(64), moment(faultPauseRank), s.extent(faultPauseRank, 8*time.Second)
				s.at(at, func() {
					nodes := e.current().nodes
					nodes[i%len(nodes)].halt(d)
				})
			}
			if s.strike(faultZombie) {
				s.at(moment(faultZombie), func() {
					if !s.serial && !s.calm {
						s.counts.reach("two generations at once")
						e.start()
					}
				})
			}
			if s.strike(faultClose) {
				s.at(moment(faultClose), func() { s.shut(e) })
			}
			if s.strike(faultFailover) {
				s.at(moment(faultFailover), func() { s.directory.failover(s) })
			}
		}
		for _, x := range s.engines {
			if e == x {
				continue
			}
			if s.strike(faultPartition) {
				at, d := moment(faultPartition), s.extent(faultPartition, 5*time.Second)
				both := s.dice[faultPartition].IntN(2) == 0
				s.at(at, func() { s.part(e, x, both, d) })
			}
			for range 3 {
				if s.strike(faultConnection) {
					s.at(moment(faultConnection), func() { s.breakLinks(e, x) })
				}
			}
		}
	}
}

// reaches says that what a node sends gets to another one's machine.
func (s *sim) reaches(from, to *simNode) bool {
	return s.cuts[[2]*simEngine{from.run.engine, to.run.engine}] == 0
}

// part cuts two engines off from each other, in one direction or both.
func (s *sim) part(a, b *simEngine, both bool, d time.Duration) {
	if s.calm {
		return
	}
	s.note("%s cannot reach %s, both ways %v, for %v", a.name, b.name, both, d)
	keys := [][2]*simEngine{{a, b}}
	if both {
		keys = append(keys, [2]*simEngine{b, a})
	}
	for _, k := range keys {
		s.cuts[k]++
	}
	s.after(s.extent(faultPartition, 2*d), func() { // the transports may notice, or not
		if !s.calm && s.dice[faultPartition].IntN(2) == 0 {
			s.breakLinks(a, b)
		}
	})
	s.after(d, func() {
		for _, k := range keys {
			if s.cuts[k] > 0 {
				s.cuts[k]--
			}
		}
	})
}

// breakLinks loses connections of two engines.
func (s *sim) breakLinks(a, b *simEngine) {
	if s.calm {
		return
	}
	d := s.dice[faultConnection]
	for _, e := range []*simEngine{a, b} {
		for _, n := range e.current().nodes {
			for _, l := range append([]*simLink(nil), n.t.links...) {
				if (l.to.run.engine == a || l.to.run.engine == b) && d.IntN(2) == 0 {
					l.lose()
				}
			}
		}
	}
}

// crash kills an engine, or one of its processes and the others a little later.
func (s *sim) crash(e *simEngine) {
	r := e.current()
	if r.dead || s.calm {
		return
	}
	r.kill(s.strike(faultCrashRank))
	if !s.opts.without[faultRestart] && s.dice[faultRestart].IntN(2) == 0 {
		s.counts.faults[faultRestart]++
		s.after(time.Second+s.extent(faultCrash, 3*time.Second), func() {
			if e.current() == r {
				s.counts.reach("restarted")
				e.start()
			}
		})
	}
}

// shut ends an engine in order, as a supervisor does before it starts a new one.
func (s *sim) shut(e *simEngine) {
	r := e.current()
	if r.dead || s.calm {
		return
	}
	s.note("%s is shut down", r.inc.ID())
	for _, n := range r.nodes {
		n.close()
	}
	s.after(2*time.Second, func() { // whoever has not ended by then is killed
		r.kill(false)
		if e.current() == r && !s.calm {
			e.start()
		}
	})
}

// kill ends an engine's processes. The supervisor reaps them and says so, now or later, or only when all is over.
func (r *simRun) kill(one bool) {
	s := r.s
	if r.dead {
		return
	}
	r.dead = true
	s.note("%s is killed", r.inc.ID())
	for i, n := range r.nodes {
		if one && i > 0 {
			s.after(s.some(time.Second), n.kill)
			continue
		}
		n.kill()
	}
	for _, a := range s.attempts {
		if l := r.legs[a.id]; l != nil && !l.again {
			d := s.some(5 * time.Millisecond)
			if s.strike(faultSilent) {
				d = s.extent(faultSilent, 3*time.Second)
			}
			s.after(d, func() { a.lose("an engine died") })
		}
	}
	if s.strike(faultUnproven) {
		return
	}
	d := s.some(3 * time.Second)
	if s.rng.IntN(2) == 0 {
		d = s.some(20 * time.Millisecond)
	}
	if one {
		d += time.Second
	}
	s.after(d, func() { s.reap(r) })
}

// reap is a supervisor's word to every other engine that a run's processes are gone.
func (s *sim) reap(r *simRun) {
	s.counts.reach("proof by a supervisor")
	for _, n := range s.nodes {
		if n.run != r && !n.dead {
			s.after(s.some(10*time.Millisecond), func() {
				n.post(func() {
					n.told(r.inc.Engine, r.inc.Generation+1)
					n.owner.gone(r.inc, true)
				})
			})
		}
	}
}
