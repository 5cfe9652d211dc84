package agent

import (
	"math/rand/v2"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// simKnown is a secret that everybody knows.
func simKnown([]byte) ([]byte, error) { return make([]byte, 32), nil }

// forge has somebody who sees what is sent, but has no part in the session, say something in the sender's name.
func (s *sim) forge(l *simLink) {
	if !s.strike(faultForge) {
		return
	}
	d := s.dice[faultForge]
	from, to := l.from.record, l.to.record
	m := l.to.lie(l.from, d)
	if m == nil {
		return
	}
	session, err := wire.NewSession(simKnown, from, to)
	if err != nil {
		s.fail("panic", "a forger's session: %v", err)
	}
	e := wire.Header{From: from.Incarnation, Agent: from.Agent, To: to.Agent}
	body := session.AppendMAC(wire.Encode(nil, e, wire.Append(nil, m)))
	in := transport.Incoming{Kind: transport.MessageReceived, Agent: l.as, Body: body}
	to0 := l.to
	refused := to0.owner.drops[core.DropForged]
	s.after(s.extent(faultForge, 2e6), func() {
		to0.arrive(in, true)
		s.after(5e6, func() {
			if to0.owner.drops[core.DropForged] > refused {
				s.counts.reach("forged message refused")
			}
		})
	})
}

// lie is something that would change what a node does, if it were believed.
func (n *simNode) lie(from *simNode, d *rand.Rand) *wire.Message {
	p := n.owner.agents[from.record.Agent]
	if p == nil {
		return nil
	}
	if n.run.engine.isPrefill() {
		in := n.owner.producer.Sessions[p.id]
		if in == nil || len(in.Order.All) == 0 {
			return nil
		}
		r := in.Order.All[d.IntN(len(in.Order.All))]
		return &wire.Message{Kind: wire.KindAck, LowWater: r.Seq + 1 + d.Uint64N(3)}
	}
	out := n.owner.consumer.Sessions[p.id]
	if out == nil || out.Last < out.LowWater {
		return nil
	}
	m := &wire.Message{Kind: wire.KindStatus, Seq: out.LowWater + d.Uint64N(out.Last-out.LowWater+1), Status: wire.Status{State: wire.NotBegun, Reason: kvplane.Aborted}}
	if d.IntN(2) == 0 {
		m.Status = wire.Status{State: wire.Done, Tokens: 64}
	}
	return m
}
