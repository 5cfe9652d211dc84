package agent

import (
	"errors"
	"maps"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
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
		{name: "no low-water mark", rare: true, apply: mutantNoLowWater},
		{name: "free at a death without drain", rare: true, apply: mutantNoDrain},
		{name: "one report for failed and reusable", apply: mutantOneReport},
		{name: "lists are aligned by their ends", apply: mutantAlign},
		{name: "a write is posted twice", transport: mutantPostTwice},
		{name: "matched by the request's id", rare: true, apply: mutantRequestID},
		{name: "a failed result is dropped", apply: mutantDropNegative},
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
func mutantRawCount(_ *sim, n *simNode, real applier) applier {
	ids := map[registrationKey]kvplane.TransferID{}
	seen := map[registrationKey]bool{}
	return func(q delivery, out []core.Effect) []core.Effect {
		e := &q.event
		if !q.producer && e.Kind == core.EvStatus && e.Msg.Status.State == wire.Done {
			k := registrationKey{e.Peer, e.Seq}
			if r := n.owner.consumer.Incoming[ids[k]]; seen[k] && r != nil {
				for _, l := range r.Producers {
					if l.Phase != core.ProducerFinal && l.Writes {
						e.Peer, e.Seq = l.Session.Peer, l.Seq
						break
					}
				}
			}
			seen[k] = true
		}
		out = real(q, out)
		for i := range out {
			if out[i].Do == core.DoWriteRequest {
				ids[registrationKey{out[i].Peer, out[i].Seq}] = out[i].ID
			}
		}
		return out
	}
}

type registrationKey struct {
	peer core.PeerID
	seq  uint64
}

// mutantNumber expects as many producers as the size that one of them names, and not those of the records.
func mutantNumber(s *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if e := &q.event; !q.producer && e.Kind == core.EvProducers {
			p, d := s.byID[e.ID].p.engine.shape.tp, n.run.engine.shape.tp
			e.Links = e.Links[:min(len(e.Links), max(1, p/d))]
		}
		return real(q, out)
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

// quiesced declares producers of failed transfers quiesced and goes on as the core would.
func (n *simNode) quiesced(at time.Duration, out []core.Effect, which func(r *core.IncomingTransfer, l *core.ProducerState) bool) []core.Effect {
	c := n.owner.consumer
	c.Out, c.Now = out, at
	for _, id := range slices.SortedFunc(maps.Keys(c.Incoming), kvplane.TransferID.Compare) {
		r := c.Incoming[id]
		if r.State != core.IncomingFailed {
			continue
		}
		changed := false
		for _, l := range r.Producers {
			if !l.Quiesced() && which(r, l) {
				l.Fenced, changed = true, true
			}
		}
		if changed {
			c.Check(r)
		}
	}
	out, c.Out = c.Out, nil
	return out
}

// mutantTimeout gives blocks back two seconds after the failure.
func mutantTimeout(_ *sim, n *simNode, real applier) applier {
	since := map[kvplane.TransferID]time.Duration{}
	return func(q delivery, out []core.Effect) []core.Effect {
		out = real(q, out)
		if q.producer {
			return out
		}
		for i := range out {
			if out[i].Do == core.DoReport && out[i].Report == kvplane.Failed {
				since[out[i].ID] = q.event.At
			}
		}
		return n.quiesced(q.event.At, out, func(r *core.IncomingTransfer, _ *core.ProducerState) bool {
			return q.event.At-since[r.ID] > 2*time.Second
		})
	}
}

// mutantEarlyFree takes a cancel for its answer.
func mutantEarlyFree(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		out = real(q, out)
		if q.producer {
			return out
		}
		return n.quiesced(q.event.At, out, func(_ *core.IncomingTransfer, l *core.ProducerState) bool { return l.Phase == core.ProducerCancelled })
	}
}

// mutantOtherLeg does not tell prefill that decode has given up, nor the other way round.
func mutantOtherLeg(_ *sim, _ *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if q.event.Kind == core.EvAbandon && q.producer {
			return out
		}
		return real(q, out)
	}
}

// mutantReuse serves a transfer that was served before.
func mutantReuse(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if e := &q.event; q.producer && e.Kind == core.EvWriteRequest {
			if g := n.owner.producer.Outgoing[e.ID]; g != nil && g.State == core.OutgoingTombstone && g.Offer != nil && g.OwedKnown {
				s := n.owner.producer.Sessions[e.Peer]
				if s == nil || s.Requests[e.Seq] == nil {
					g.State, g.Requests = core.OutgoingHeld, nil
				}
			}
		}
		return real(q, out)
	}
}

// mutantNoLowWater refuses no write request for the age of its number.
func mutantNoLowWater(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if e := &q.event; q.producer && e.Kind == core.EvWriteRequest {
			if s := n.owner.producer.Sessions[e.Peer]; s != nil && e.Seq < s.LowWater {
				m := *e.Msg
				m.LowWater, s.LowWater, s.NeverStartBelow = 0, 0, 0
				e.Msg = &m
			}
		}
		return real(q, out)
	}
}

// mutantNoDrain takes a proof of death for the end of its writes.
func mutantNoDrain(_ *sim, _ *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if e := &q.event; !q.producer && e.Kind == core.EvGone && e.Proof {
			e.Fenced = true
		}
		return real(q, out)
	}
}

// mutantOneReport says safe with negative.
func mutantOneReport(_ *sim, _ *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		var both []core.Effect
		for _, x := range real(q, out) {
			switch {
			case x.Do == core.DoReport && x.Report == kvplane.Reusable:
				continue
			case x.Do == core.DoReport && x.Report == kvplane.Failed:
				both = append(both, x)
				x.Report = kvplane.Reusable
			}
			both = append(both, x)
		}
		return both
	}
}

// mutantAlign takes both lists to end with the same token.
func mutantAlign(s *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		out = real(q, out)
		for i := range out {
			x := &out[i]
			if x.Do != core.DoPost {
				continue
			}
			p, d := n.run.engine.shape.logical, s.byID[x.ID].d.engine.shape.logical
			m := *x.Msg
			m.Groups = slices.Clone(m.Groups)
			for g := range m.Groups {
				end := x.Offer.Groups[g].First + len(x.Offer.Groups[g].Blocks)*p
				m.Groups[g].First = max(0, end-len(m.Groups[g].Blocks)*d)
			}
			x.Msg = &m
		}
		return out
	}
}
