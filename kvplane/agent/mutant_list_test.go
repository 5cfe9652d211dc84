package agent

import (
	"errors"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// mutants are what the simulator must find.
func mutants() []*mutant {
	return []*mutant{
		{name: "raw notifications are counted", apply: mutantRawCount},
		{name: "a number in the message is trusted", apply: mutantNumber},
		{name: "the generation is not checked", ask: mutantGeneration},
		{name: "time releases", apply: mutantTimeout},
		{name: "free before the answer to a cancel", apply: mutantEarlyFree},
		{name: "the other leg is forgotten", apply: mutantOtherLeg},
		{name: "a reference serves again", apply: mutantReuse},
		{name: "no floor", rare: true, apply: mutantNoFloor},
		{name: "free at a death without drain", rare: true, apply: mutantNoDrain},
		{name: "one report for failed and reusable", apply: mutantOneReport},
		{name: "lists are aligned by their ends", apply: mutantAlign},
		{name: "a write is posted twice", transport: mutantPostTwice},
		{name: "matched by the request's id", rare: true, apply: mutantRequestID},
		{name: "a negative result is dropped", apply: mutantDropNegative},
		{name: "one consumer is counted twice", apply: mutantCountTwice},
		{name: "free at failed without drain", rare: true, apply: mutantFailedNoDrain},
		{name: "not begun is answered while writing", apply: mutantNotBegun},
		{name: "consumers are only notified", apply: mutantNotifyOnly},
		{name: "a drain without its passes", rare: true, apply: mutantNoPasses},
		{name: "a number refused as full is begun later", rare: true, tables: true, apply: mutantRefused},
		{name: "a failed write is answered as not begun", rare: true, apply: mutantDenied},
		{name: "a burst of words is taken for silence", rare: true, apply: mutantHasty},
		{name: "the code of a message is not checked", agree: simKnown},
		{name: "a report answers whatever is ordered", rare: true, hear: mutantAnyOrder},
	}
}

// mutantRawCount counts a completion that comes twice for another producer of the same transfer.
func mutantRawCount(_ *sim, n *simNode, core applier) applier {
	ids := map[registrationKey]kvplane.TransferID{}
	seen := map[registrationKey]bool{}
	return func(q queued, out []effect) []effect {
		e := &q.event
		if !q.producer && e.kind == evStatus && e.msg.Status.State == wire.Done {
			k := registrationKey{e.peer, e.seq}
			if r := n.w.consumer.receipts[ids[k]]; seen[k] && r != nil {
				for _, l := range r.links {
					if l.state != originFinal && l.writes {
						e.peer, e.seq = l.session.peer, l.seq
						break
					}
				}
			}
			seen[k] = true
		}
		out = core(q, out)
		for i := range out {
			if out[i].do == doRegister {
				ids[registrationKey{out[i].peer, out[i].seq}] = out[i].id
			}
		}
		return out
	}
}

type registrationKey struct {
	peer peerID
	seq  uint64
}

// mutantNumber expects as many producers as the size that one of them names, and not those of the records.
func mutantNumber(s *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if e := &q.event; !q.producer && e.kind == evProducers {
			p, d := s.byID[e.id].p.engine.shape.tp, n.run.engine.shape.tp
			e.links = e.links[:min(len(e.links), max(1, p/d))]
		}
		return core(q, out)
	}
}

// mutantGeneration goes on with a generation that the directory calls over.
func mutantGeneration(n *simNode, ask asker) asker {
	return func(inc metadata.Incarnation, then func([]metadata.Record, error)) {
		ask(inc, func(records []metadata.Record, err error) {
			if errors.Is(err, ErrSuperseded) {
				for _, e := range n.s.engines {
					if e.name == inc.Engine {
						records, err = e.runs[inc.Generation-1].records, nil
					}
				}
			}
			then(records, err)
		})
	}
}

// harmless declares producers of failed transfers harmless and goes on as the core would.
func (n *simNode) harmless(at time.Duration, out []effect, which func(r *receipt, l *origin) bool) []effect {
	c := n.w.consumer
	c.out, c.now = out, at
	for _, id := range sortedIDs(c.receipts) {
		r := c.receipts[id]
		if r.state != receiptStop {
			continue
		}
		changed := false
		for _, l := range r.links {
			if !l.harmless() && which(r, l) {
				l.fenced, changed = true, true
			}
		}
		if changed {
			c.check(r)
		}
	}
	out, c.out = c.out, nil
	return out
}

// mutantTimeout gives blocks back two seconds after the failure.
func mutantTimeout(_ *sim, n *simNode, core applier) applier {
	since := map[kvplane.TransferID]time.Duration{}
	return func(q queued, out []effect) []effect {
		out = core(q, out)
		if q.producer {
			return out
		}
		for i := range out {
			if out[i].do == doReport && out[i].report == kvplane.Negative {
				since[out[i].id] = q.event.at
			}
		}
		return n.harmless(q.event.at, out, func(r *receipt, _ *origin) bool { return q.event.at-since[r.id] > 2*time.Second })
	}
}

// mutantEarlyFree takes a cancel for its answer.
func mutantEarlyFree(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		out = core(q, out)
		if q.producer {
			return out
		}
		return n.harmless(q.event.at, out, func(_ *receipt, l *origin) bool { return l.state == originCancelled })
	}
}

// mutantOtherLeg does not tell prefill that decode has given up, nor the other way round.
func mutantOtherLeg(_ *sim, _ *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if q.event.kind == evAbandon && q.producer {
			return out
		}
		return core(q, out)
	}
}

// mutantReuse serves a transfer that was served before.
func mutantReuse(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if e := &q.event; q.producer && e.kind == evRegister {
			if g := n.w.producer.given[e.id]; g != nil && g.state == givenSpent && g.offer != nil && g.known {
				s := n.w.producer.sessions[e.peer]
				if s == nil || s.regs[e.seq] == nil {
					g.state, g.regs = givenHeld, nil
				}
			}
		}
		return core(q, out)
	}
}

// mutantNoFloor refuses no registration for the age of its number.
func mutantNoFloor(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if e := &q.event; q.producer && e.kind == evRegister {
			if s := n.w.producer.sessions[e.peer]; s != nil && e.seq < s.floor {
				m := *e.msg
				m.Floor, s.floor, s.low = 0, 0, 0
				e.msg = &m
			}
		}
		return core(q, out)
	}
}

// mutantNoDrain takes a proof of death for the end of its writes.
func mutantNoDrain(_ *sim, _ *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if e := &q.event; !q.producer && e.kind == evGone && e.proof {
			e.fenced = true
		}
		return core(q, out)
	}
}

// mutantOneReport says safe with negative.
func mutantOneReport(_ *sim, _ *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		var both []effect
		for _, x := range core(q, out) {
			switch {
			case x.do == doReport && x.report == kvplane.Safe:
				continue
			case x.do == doReport && x.report == kvplane.Negative:
				both = append(both, x)
				x.report = kvplane.Safe
			}
			both = append(both, x)
		}
		return both
	}
}

// mutantAlign takes both lists to end with the same token.
func mutantAlign(s *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		out = core(q, out)
		for i := range out {
			x := &out[i]
			if x.do != doPost {
				continue
			}
			p, d := n.run.engine.shape.logical, s.byID[x.id].d.engine.shape.logical
			m := *x.msg
			m.Groups = slices.Clone(m.Groups)
			for g := range m.Groups {
				end := x.offer.Groups[g].First + len(x.offer.Groups[g].Blocks)*p
				m.Groups[g].First = max(0, end-len(m.Groups[g].Blocks)*d)
			}
			x.msg = &m
		}
		return out
	}
}
