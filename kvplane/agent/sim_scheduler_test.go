package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
)

// simScheduler is an engine's scheduler: it gives Orders to the ranks, and an Aggregator says what their RankReports mean.
// Both travel as bytes, each way in order: late by a step that is slow, or not at all. Nothing is sent again.
type simScheduler struct {
	run      *simRun
	agg      *sched.Aggregator
	out      sched.Outcome
	next     sched.Orders  // since the last step
	stepping bool          // a step is planned
	wake     time.Duration // when the Aggregator's earliest deadline is over; 0: there is none
	lossy    bool          // orders or a report were lost
	missed   uint64        // reports that were lost before one that was heard
}

func newSimScheduler(r *simRun) *simScheduler {
	times := r.s.times
	if r.s.opts.direct {
		times.Deadline = 4*times.Deadline - times.NetDelay
	}
	return &simScheduler{run: r, agg: sched.NewAggregator(r.inc, r.ranks, times)}
}

// order has every rank told in the next step.
func (c *simScheduler) order(o sched.Orders) {
	s := c.run.s
	c.agg.Order(s.now, &o)
	c.rearm()
	if s.opts.direct {
		c.direct(&o)
		return
	}
	n := &c.next
	n.Queue, n.Expect = append(n.Queue, o.Queue...), append(n.Expect, o.Expect...)
	n.Offer, n.Abandon = append(n.Offer, o.Offer...), append(n.Abandon, o.Abandon...)
	if !c.stepping {
		c.stepping = true
		s.later(s.step(), c.step)
	}
}

// step gives the orders since the last one to every rank.
func (c *simScheduler) step() {
	s := c.run.s
	c.stepping = false
	b := c.next.Marshal()
	c.next = sched.Orders{}
	for _, n := range c.run.nodes {
		if s.strike(faultMiss) {
			s.note("orders for %s are lost", n.record.Agent)
			c.lossy = true
			continue
		}
		lag := s.some(200 * time.Microsecond)
		if s.strike(faultLag) {
			lag = s.extent(faultLag, time.Second)
		}
		n.toldAt = max(n.toldAt+1, s.now+lag)
		s.at(n.toldAt, func() {
			o, err := sched.ParseOrders(b)
			if err != nil {
				s.fail("panic", "orders: %v", err)
			}
			n.obey(&o)
		})
	}
}

// step draws how long a step takes.
func (s *sim) step() time.Duration {
	if s.strike(faultStep) {
		return s.extent(faultStep, 3*s.times.Wait)
	}
	return s.some(500 * time.Microsecond)
}

// direct gives one order to every rank at once, each with a lag of its own.
func (c *simScheduler) direct(o *sched.Orders) {
	s := c.run.s
	for _, n := range c.run.nodes {
		if len(o.Queue) > 0 {
			n.obey(o)
			continue
		}
		lag := s.some(500 * time.Microsecond)
		if len(o.Abandon) == 0 && s.strike(faultLag) {
			lag = s.extent(faultLag, time.Second)
		}
		s.after(lag, func() { n.obey(o) })
	}
}

// obey has the rank's owner carry out orders.
func (n *simNode) obey(o *sched.Orders) {
	s := n.s
	mine := sched.Orders{Queue: o.Queue, Abandon: o.Abandon}
	begins := !n.dead && !n.closing && !n.run.dead
	for _, x := range o.Offer {
		if !begins {
			break
		}
		if s.strike(faultTicket) {
			x.Ticket[1]++
		}
		n.given('o', x.ID)
		mine.Offer = append(mine.Offer, x)
	}
	for _, x := range o.Expect {
		if !begins {
			break
		}
		if s.strike(faultTokens) {
			x.Hash[1]++
		}
		n.given('e', x.ID)
		mine.Expect = append(mine.Expect, x)
	}
	for _, x := range o.Abandon {
		if l := n.run.legs[x.ID]; l != nil {
			l.ranks[n.rank].stopped = s.now
		}
	}
	if mine.Empty() {
		return
	}
	n.post(func() {
		n.owner.order(&mine)
		for _, x := range mine.Abandon {
			n.abandoned[x.ID] = s.now
		}
	})
}

// given notes that the rank is ordered to offer or to expect a transfer.
func (n *simNode) given(what uint64, id kvplane.TransferID) {
	s := n.s
	if l := n.run.legs[id]; l != nil {
		x := l.ranks[n.rank]
		x.given, x.at = n.clock(), s.now
	}
	s.mix(what, uint64(n.record.Process.PID), uint64(s.byID[id].number))
}

// hears takes a report from the rank's owner: it waits to be collected.
func (c *simScheduler) hears(n *simNode, r kvplane.Report) {
	n.owner.keepReport(r)
	if c.run.s.opts.direct {
		c.hear(n, n.collect())
	}
}

// rings says that a rank has something to say.
func (c *simScheduler) rings(n *simNode) {
	s := c.run.s
	if s.opts.direct {
		return
	}
	s.later(s.step(), func() { c.collect(n) })
}

func (n *simNode) collect() sched.RankReport {
	a := &Agent{owner: n.owner, record: n.record}
	return a.Collect()
}

// collect takes what a rank has to say and sends it to the scheduler. A process that is stopped does so afterwards, one
// that has ended in order has done so before.
func (c *simScheduler) collect(n *simNode) {
	s := c.run.s
	switch {
	case c.run.dead:
		return
	case n.pause > s.now:
		s.at(n.pause, func() { c.collect(n) })
		return
	}
	r := n.collect()
	if s.strike(faultMiss) {
		s.note("a report of %s is lost", n.record.Agent)
		if len(r.Reports) > 0 {
			c.lossy = true
			n.lost++
		}
		return
	}
	b, lost := r.Marshal(), n.lost
	n.lost = 0
	n.heardAt = max(n.heardAt+1, s.now+s.prompt(s.step()))
	s.at(n.heardAt, func() {
		if c.run.dead {
			return
		}
		r, err := sched.ParseRankReport(b)
		if err != nil {
			s.fail("panic", "report: %v", err)
		}
		c.hear(n, r)
		if c.missed += lost; c.agg.Missed() != c.missed {
			s.fail("S11", "%s has missed %d reports; it says %d", c.run.inc.ID(), c.missed, c.agg.Missed())
		}
	})
}

// hear takes what one rank says.
func (c *simScheduler) hear(n *simNode, r sched.RankReport) {
	if m := c.run.s.mutant; m != nil && m.hear != nil {
		m.hear(c, &r)
	}
	c.turn([]sched.RankReport{r})
}

// turn does what reports and deadlines mean.
func (c *simScheduler) turn(reports []sched.RankReport) {
	s, out := c.run.s, &c.out
	c.agg.Step(s.now, reports, out)
	act := func(all []sched.Ended, do func(l *simLeg, x *sched.Ended)) {
		for i := range all {
			if l := c.run.legs[all[i].ID]; l != nil {
				do(l, &all[i])
			}
		}
	}
	act(out.Released, func(l *simLeg, _ *sched.Ended) { l.released() })
	act(out.Failed, func(l *simLeg, x *sched.Ended) {
		if l.state == legQueued {
			l.dequeued(x.Reason)
		} else {
			l.lost(x.Reason)
		}
	})
	act(out.Closed, func(l *simLeg, _ *sched.Ended) {
		s.counts.reach("closed")
		l.release()
	})
	act(out.Freed, func(l *simLeg, _ *sched.Ended) {
		s.counts.reach("freed")
		l.release()
	})
	c.rearm()
}

// rearm wakes the scheduler when its earliest deadline is over.
func (c *simScheduler) rearm() {
	at := c.agg.Next()
	if at == c.wake {
		return
	}
	if c.wake = at; at > 0 {
		c.run.s.push(simStep{at: max(at, c.run.s.now+1), late: c, do: func() { c.turn(nil) }})
	}
}

// settled checks that the scheduler waits for nothing, and has ignored nothing that it should have understood.
func (c *simScheduler) settled() {
	s := c.run.s
	i := c.agg.Ignored()
	if i.Stale > 0 {
		s.counts.reach("stale answer ignored")
	}
	i.Stale, i.Unknown = 0, 0
	switch {
	case c.agg.Open() > 0 || c.agg.Next() > 0:
		s.fail("L2", "the scheduler of %s waits for %d transfers", c.run.inc.ID(), c.agg.Open())
	case i != (sched.Ignored{}) || c.agg.Missed() > 0:
		s.fail("S11", "the scheduler of %s has ignored %+v and missed %d", c.run.inc.ID(), i, c.agg.Missed())
	}
}
