package agent

import (
	"slices"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// simRepost is a transport that posts a failed write once more.
type simRepost struct {
	transport.Transport
	posted map[uint64]simReposted
}

type simReposted struct {
	agent  string
	ranges []kvplane.Range
	notify []byte
}

// simRepostFencer is a simRepost around a transport that can fence.
type simRepostFencer struct {
	*simRepost
	transport.Fencer
}

func mutantPostTwice(_ *simNode, t transport.Transport) transport.Transport {
	r := &simRepost{Transport: t, posted: map[uint64]simReposted{}}
	if f, ok := t.(transport.Fencer); ok {
		return &simRepostFencer{r, f}
	}
	return r
}

func (t *simRepost) Write(agent string, id uint64, ranges []kvplane.Range, notify []byte) error {
	t.posted[id] = simReposted{agent, slices.Clone(ranges), slices.Clone(notify)}
	return t.Transport.Write(agent, id, ranges, notify)
}

func (t *simRepost) Poll(out []transport.Incoming) []transport.Incoming {
	first := len(out)
	out = t.Transport.Poll(out)
	return append(out[:first], slices.DeleteFunc(slices.Clone(out[first:]), func(in transport.Incoming) bool {
		x, ok := t.posted[in.ID]
		if in.Kind != transport.WriteEnded || !ok {
			return false
		}
		delete(t.posted, in.ID)
		return in.Err != nil && t.Transport.Write(x.agent, in.ID, x.ranges, x.notify) == nil
	})...)
}

// mutantRequestID matches a write request with what was offered for an earlier attempt of the same request.
func mutantRequestID(s *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if e := &q.event; q.producer && e.Kind == core.EvWriteRequest && s.byID[e.ID] != nil {
			if g := n.owner.producer.Outgoing[e.ID]; g == nil || g.State == core.OutgoingEarly {
				for _, a := range s.byID[e.ID].request.attempts {
					if o := n.owner.producer.Outgoing[a.id]; o != nil && o.State == core.OutgoingHeld {
						e.ID = a.id
						break
					}
				}
			}
		}
		return real(q, out)
	}
}

// mutantDropNegative loses the word that a transfer has failed.
func mutantDropNegative(_ *sim, _ *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		return slices.DeleteFunc(real(q, out), func(x core.Effect) bool {
			return x.Do == core.DoReport && (x.Report == kvplane.Failed || x.Report == kvplane.Reusable)
		})
	}
}

// mutantCountTwice takes a consumer that registers again for another one.
func mutantCountTwice(_ *sim, n *simNode, real applier) applier {
	count := map[kvplane.TransferID]int{}
	return func(q delivery, out []core.Effect) []core.Effect {
		e, p := &q.event, n.owner.producer
		repeated := false
		if q.producer && e.Kind == core.EvWriteRequest {
			if s := p.Sessions[e.Peer]; s != nil {
				r := s.Requests[e.Seq]
				repeated = r != nil && r.State == core.RequestEnded && r.Status.State == wire.Done
			}
		}
		out = real(q, out)
		if !q.producer || e.Kind != core.EvWritten && e.Kind != core.EvNothing && !repeated {
			return out
		}
		count[e.ID]++
		if g := p.Outgoing[e.ID]; g != nil && g.State == core.OutgoingHeld && g.OwedKnown && count[e.ID] >= len(g.Owed) {
			p.Out, p.Now = out, e.At
			p.EndTransfer(g)
			out, p.Out = p.Out, nil
		}
		return out
	}
}

// mutantFailedNoDrain takes a failed write for one that was never begun.
func mutantFailedNoDrain(_ *sim, _ *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if e := &q.event; !q.producer && e.Kind == core.EvStatus && e.Msg.Status.State == wire.Failed {
			m := *e.Msg
			m.Status.State = wire.NotBegun
			e.Msg = &m
		}
		return real(q, out)
	}
}

// mutantNotBegun answers a cancel as if its write could be called back.
func mutantNotBegun(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		out = real(q, out)
		e := &q.event
		if s := n.owner.producer.Sessions[e.Peer]; q.producer && e.Kind == core.EvCancel && s != nil {
			if r := s.Requests[e.Seq]; r != nil && r.State == core.RequestWriting {
				out = append(out, core.Effect{Do: core.DoStatus, Peer: e.Peer, Seq: e.Seq, ID: e.ID, Status: wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}})
			}
		}
		return out
	}
}

// mutantNotifyOnly writes to one consumer of a replicated cache and only notifies the others.
func mutantNotifyOnly(s *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		return slices.DeleteFunc(real(q, out), func(x core.Effect) bool {
			if x.Do != core.DoPost || !s.model.replicated {
				return false
			}
			to := n.owner.peers[x.Peer].record
			if to.Rank.TP*n.run.engine.shape.tp/to.Size.TP == n.rank.TP && to.Rank.TP%max(1, to.Size.TP/n.run.engine.shape.tp) == 0 {
				return false
			}
			n.owner.stepProducer(core.Event{Kind: core.EvNothing, Peer: x.Peer, Seq: x.Seq, ID: x.ID, Tokens: x.Offer.Tokens})
			return true
		})
	}
}

// mutantNoPasses waits for the net delay and then does not take in what a writer has left behind.
func mutantNoPasses(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		return slices.DeleteFunc(real(q, out), func(x core.Effect) bool {
			if x.Do != core.DoFlush {
				return false
			}
			n.owner.engineCall(func() { n.owner.stepConsumer(core.Event{Kind: core.EvFlushed, Peer: x.Peer, Seq: x.Seq, ID: x.ID}) })
			return true
		})
	}
}

// mutantRefused forgets which numbers were refused, so that one that comes again finds room.
func mutantRefused(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if s := n.owner.producer.Sessions[q.event.Peer]; q.producer && q.event.Kind == core.EvWriteRequest && s != nil {
			s.NeverStartBelow = min(s.NeverStartBelow, q.event.Seq)
		}
		return real(q, out)
	}
}

// mutantDenied answers for a write that has failed as if it had never begun.
func mutantDenied(_ *sim, _ *simNode, real applier) applier {
	deny := func(st *wire.Status) {
		if st.State == wire.Failed {
			st.State = wire.NotBegun
		}
	}
	return func(q delivery, out []core.Effect) []core.Effect {
		out = real(q, out)
		for i := range out {
			deny(&out[i].Status)
			for j := range out[i].Lines {
				deny(&out[i].Lines[j].Status)
			}
		}
		return out
	}
}

// mutantHasty takes each word of its engine for one more heartbeat that was not answered.
func mutantHasty(_ *sim, n *simNode, real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if !q.producer && q.event.Kind == core.EvQueue {
			for _, s := range n.owner.consumer.Sessions { // every one alike: the order does not matter
				if s.Heartbeat.Unanswered {
					s.Heartbeat.Missed++
				}
			}
		}
		return real(q, out)
	}
}

// mutantAnyOrder takes each report for an answer to the transfer's newest order, as if it did not name one.
func mutantAnyOrder(c *simScheduler, r *sched.RankReport) {
	for i := range r.Reports {
		if kind, ok := c.agg.Awaits(r.Reports[i].ID); ok {
			r.Reports[i].Order = kind
		}
	}
}
