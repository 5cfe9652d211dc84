package agent

import (
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// execute carries out one effect.
func (o *owner) execute(x *core.Effect) {
	p := o.peers[x.Peer]
	switch x.Do {
	case core.DoReport:
		o.report(x)
		return
	case core.DoDrop:
		o.drops[x.Drop]++
		return
	case core.DoFlush:
		o.flush(x)
		return
	}
	if p == nil {
		return // gone
	}
	switch x.Do {
	case core.DoStatus:
		o.send(p, &wire.Message{Kind: wire.KindStatus, Seq: x.Seq, Status: x.Status})
	case core.DoWriteRequest:
		m := &wire.Message{
			Kind: wire.KindWriteRequest, Seq: x.Seq, ID: x.ID, Need: x.Expect.Need, Groups: x.Expect.Groups,
			Ticket: x.Expect.Ticket, Hash: x.Expect.Hash, Wait: x.Wait,
		}
		if p.admitted == 0 || o.now()-p.admitted >= o.cfg.Times.Resend/2 {
			o.send(p, m)
		} // else its connection was cut just now, and a write before it has seen that would fail; this is sent again soon
		if x.Unanswered > 0 {
			o.suspectStale(p)
		}
	case core.DoCancel:
		o.send(p, &wire.Message{Kind: wire.KindCancel, Seq: x.Seq, ID: x.ID, Why: x.Reason.String()})
		if x.Unanswered > 0 {
			o.suspectStale(p)
		}
	case core.DoAck:
		if !p.ackDue {
			p.ackDue = true
			o.acksDue = append(o.acksDue, p)
		}
		p.settled = append(p.settled, x.Seq)
	case core.DoHeartbeat:
		o.send(p, &wire.Message{Kind: wire.KindHeartbeat, Lines: x.Lines})
	case core.DoHeartbeatAck:
		o.send(p, &wire.Message{Kind: wire.KindHeartbeatAck, Lines: x.Lines})
	case core.DoBye:
		o.send(p, &wire.Message{Kind: wire.KindBye})
	case core.DoFence:
		o.fence(p)
	case core.DoAdmit:
		// Whatever it had posted after the fence has ended; the second fence makes sure that nothing of it is left on
		// a connection that came after the first.
		if f, ok := o.cfg.Transport.(transport.Fencer); ok && f.Fence(p.record.Agent) == nil {
			f.Admit(p.record.Agent)
			p.admitted = o.now()
			o.log.Info("kvplane: fenced peer is admitted again", "peer", p.record.Agent)
		}
	case core.DoPair:
		o.retryConnect(p)
	case core.DoPost:
		o.planAndPost(p, x)
	}
}

// send encodes a message and gives it to the transport. The core that waits for the answer sends lost ones again.
func (o *owner) send(p *peer, m *wire.Message) {
	if p.gone {
		return
	}
	if !p.connected {
		o.retryConnect(p)
		return
	}
	m.LowWater = o.consumer.LowWaterOf(p.id)
	o.active = o.now()
	o.sentAt, p.used = o.active, o.active
	if err := o.cfg.Transport.Send(p.record.Agent, o.encode(p, m)); err != nil {
		o.log.Debug("kvplane: send", "peer", p.record.Agent, "err", err)
	}
}

func (o *owner) encode(p *peer, m *wire.Message) []byte {
	o.body = wire.Append(o.body[:0], m)
	o.packet = wire.Encode(o.packet[:0], wire.Header{From: o.self.Incarnation, Agent: o.self.Agent, To: p.record.Agent}, o.body)
	o.packet = p.session.AppendMAC(o.packet) // a connected peer has a session
	return o.packet
}

// sendAcks sends what was settled in this pass, one message to each peer.
func (o *owner) sendAcks() {
	for _, p := range o.acksDue {
		p.ackDue = false
		m := &wire.Message{Kind: wire.KindAck}
		lowWater := o.consumer.LowWaterOf(p.id)
		for _, seq := range p.settled {
			if seq >= lowWater && len(m.Settled) < wire.MaxSettled {
				m.Settled = append(m.Settled, seq)
			}
		}
		p.settled = p.settled[:0]
		o.send(p, m)
	}
	o.acksDue = o.acksDue[:0]
}

// fence lets nothing of a lost or silent peer land any more. Where the transport cannot do that, D waits for P's
// answer, or for the proof that P is dead.
func (o *owner) fence(p *peer) {
	f, ok := o.cfg.Transport.(transport.Fencer)
	if !ok {
		o.checkLivenessWithin(o.cfg.Times.Resend)
		return
	}
	if err := f.Fence(p.record.Agent); err != nil {
		o.log.Warn("kvplane: fence", "peer", p.record.Agent, "err", err)
		return
	}
	o.log.Info("kvplane: silent peer is fenced", "peer", p.record.Agent)
	o.stepConsumer(core.Event{Kind: core.EvFenced, Peer: p.id})
}

// flush takes in what a writer had sent before its end: two polls, after the net delay that the core has waited.
func (o *owner) flush(x *core.Effect) {
	// The polls are made from the inbox, so that a poll never runs inside another.
	id, peer, seq := x.ID, x.Peer, x.Seq
	o.enqueue(func() {
		o.poll()
		o.poll()
		o.stepConsumer(core.Event{Kind: core.EvFlushed, Peer: peer, Seq: seq, ID: id})
	})
}
