package agent

import (
	"slices"

	"pdrouter/kvplane"
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

// mutantRequestID matches a registration with what was offered for an earlier attempt of the same request.
func mutantRequestID(s *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if e := &q.event; q.producer && e.kind == evRegister && s.byID[e.id] != nil {
			if g := n.w.producer.given[e.id]; g == nil || g.state == givenEarly {
				for _, a := range s.byID[e.id].request.attempts {
					if o := n.w.producer.given[a.id]; o != nil && o.state == givenHeld {
						e.id = a.id
						break
					}
				}
			}
		}
		return core(q, out)
	}
}

// mutantDropNegative loses the word that a transfer has failed.
func mutantDropNegative(_ *sim, _ *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		return slices.DeleteFunc(core(q, out), func(x effect) bool {
			return x.do == doReport && (x.report == kvplane.Negative || x.report == kvplane.Safe)
		})
	}
}

// mutantCountTwice takes a consumer that registers again for another one.
func mutantCountTwice(_ *sim, n *simNode, core applier) applier {
	count := map[kvplane.TransferID]int{}
	return func(q queued, out []effect) []effect {
		e, p := &q.event, n.w.producer
		repeated := false
		if q.producer && e.kind == evRegister {
			if s := p.sessions[e.peer]; s != nil {
				r := s.regs[e.seq]
				repeated = r != nil && r.state == regEnded && r.status.State == wire.Done
			}
		}
		out = core(q, out)
		if !q.producer || e.kind != evWritten && e.kind != evNothing && !repeated {
			return out
		}
		count[e.id]++
		if g := p.given[e.id]; g != nil && g.state == givenHeld && g.known && count[e.id] >= len(g.owed) {
			p.out, p.now = out, e.at
			p.spend(g)
			out, p.out = p.out, nil
		}
		return out
	}
}

// mutantFailedNoDrain takes a failed write for one that was never begun.
func mutantFailedNoDrain(_ *sim, _ *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if e := &q.event; !q.producer && e.kind == evStatus && e.msg.Status.State == wire.Failed {
			m := *e.msg
			m.Status.State = wire.NotBegun
			e.msg = &m
		}
		return core(q, out)
	}
}

// mutantNotBegun answers a cancel as if its write could be called back.
func mutantNotBegun(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		out = core(q, out)
		e := &q.event
		if s := n.w.producer.sessions[e.peer]; q.producer && e.kind == evCancel && s != nil {
			if r := s.regs[e.seq]; r != nil && r.state == regWriting {
				out = append(out, effect{do: doStatus, peer: e.peer, seq: e.seq, id: e.id, status: wire.Status{State: wire.NotBegun, Reason: kvplane.Cancelled}})
			}
		}
		return out
	}
}

// mutantNotifyOnly writes to one consumer of a replicated cache and only notifies the others.
func mutantNotifyOnly(s *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		return slices.DeleteFunc(core(q, out), func(x effect) bool {
			if x.do != doPost || !s.model.replicated {
				return false
			}
			to := n.w.peers[x.peer].record
			if to.Rank.TP*n.run.engine.shape.tp/to.Size.TP == n.rank.TP && to.Rank.TP%max(1, to.Size.TP/n.run.engine.shape.tp) == 0 {
				return false
			}
			n.w.stepProducer(event{kind: evNothing, peer: x.peer, seq: x.seq, id: x.id, tokens: x.offer.Tokens})
			return true
		})
	}
}

// mutantNoPasses waits for the net delay and then does not take in what a writer has left behind.
func mutantNoPasses(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		return slices.DeleteFunc(core(q, out), func(x effect) bool {
			if x.do != doDrain {
				return false
			}
			n.w.post(func() { n.w.stepConsumer(event{kind: evDrained, peer: x.peer, seq: x.seq, id: x.id}) })
			return true
		})
	}
}

// mutantRefused forgets which numbers were refused, so that one that comes again finds room.
func mutantRefused(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if s := n.w.producer.sessions[q.event.peer]; q.producer && q.event.kind == evRegister && s != nil {
			s.low = min(s.low, q.event.seq)
		}
		return core(q, out)
	}
}

// mutantDenied answers for a write that has failed as if it had never begun.
func mutantDenied(_ *sim, _ *simNode, core applier) applier {
	deny := func(st *wire.Status) {
		if st.State == wire.Failed {
			st.State = wire.NotBegun
		}
	}
	return func(q queued, out []effect) []effect {
		out = core(q, out)
		for i := range out {
			deny(&out[i].status)
			for j := range out[i].beats {
				deny(&out[i].beats[j].Status)
			}
		}
		return out
	}
}

// mutantHasty takes each word of its engine for one more beat that was not answered.
func mutantHasty(_ *sim, n *simNode, core applier) applier {
	return func(q queued, out []effect) []effect {
		if !q.producer && q.event.kind == evQueue {
			for _, s := range n.w.consumer.sessions { // every one alike: the order does not matter
				if s.pulse.asked {
					s.pulse.missed++
				}
			}
		}
		return core(q, out)
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
