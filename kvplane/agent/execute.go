package agent

import (
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// execute carries out one effect.
func (w *owner) execute(x *core.Effect) {
	p := w.peers[x.Peer]
	switch x.Do {
	case core.DoReport:
		w.report(x)
		return
	case core.DoDrop:
		w.drops[x.Drop]++
		return
	case core.DoFlush:
		w.flush(x)
		return
	case core.DoResolve:
		if from, ok := w.consumer.UnpairedWith(x.ID); ok {
			w.sendProducers(x.ID, from)
		}
		return
	}
	if p == nil {
		return // gone
	}
	switch x.Do {
	case core.DoStatus:
		w.send(p, &wire.Message{Kind: wire.KindStatus, Seq: x.Seq, Status: x.Status})
	case core.DoWriteRequest:
		m := &wire.Message{
			Kind: wire.KindWriteRequest, Seq: x.Seq, ID: x.ID, Need: x.Expect.Need, Groups: x.Expect.Groups,
			Ticket: x.Expect.Ticket, Hash: x.Expect.Hash, Wait: x.Wait,
		}
		if p.admitted == 0 || w.now()-p.admitted >= w.cfg.Times.Resend/2 {
			w.send(p, m)
		} // else its connection was cut just now, and a write before it has seen that would fail; this is sent again soon
		if x.K > 0 { // it does not answer: its rank may have been rebuilt
			p.maybeRebuilt = true
			w.suspectStale(p)
		}
	case core.DoCancel:
		w.send(p, &wire.Message{Kind: wire.KindCancel, Seq: x.Seq, ID: x.ID, Why: x.Reason.String()})
		if x.K > 0 {
			w.suspectStale(p)
		}
	case core.DoAck:
		if !p.ackDue {
			p.ackDue = true
			w.acksDue = append(w.acksDue, p)
		}
		p.settled = append(p.settled, x.Seq)
	case core.DoHeartbeat:
		w.send(p, &wire.Message{Kind: wire.KindHeartbeat, Lines: x.Lines})
	case core.DoHeartbeatAck:
		w.send(p, &wire.Message{Kind: wire.KindHeartbeatAck, Lines: x.Lines})
	case core.DoBye:
		w.send(p, &wire.Message{Kind: wire.KindBye})
	case core.DoFence:
		w.fence(p)
	case core.DoAdmit:
		// Whatever it had posted after the fence has ended; the second fence makes sure that nothing of it is left on
		// a connection that came after the first.
		if f, ok := w.cfg.Transport.(transport.Fencer); ok && f.Fence(p.record.Agent) == nil {
			f.Admit(p.record.Agent)
			p.admitted = w.now()
			w.log.Info("kvplane: fenced peer is admitted again", "peer", p.record.Agent)
		}
	case core.DoPair:
		w.retryConnect(p)
	case core.DoPost:
		w.planAndPost(p, x)
	}
}

// send encodes a message and gives it to the transport. The core that waits for the answer sends lost ones again.
func (w *owner) send(p *peer, m *wire.Message) {
	if p.gone {
		return
	}
	if !p.connected {
		w.retryConnect(p)
		return
	}
	m.LowWater = w.consumer.LowWaterOf(p.id)
	w.active = w.now()
	w.sentAt, p.used = w.active, w.active
	if err := w.cfg.Transport.Send(p.record.Agent, w.encode(p, m)); err != nil {
		p.maybeRebuilt = true
		w.log.Debug("kvplane: send", "peer", p.record.Agent, "err", err)
	}
}

func (w *owner) encode(p *peer, m *wire.Message) []byte {
	w.body = wire.Append(w.body[:0], m)
	w.packet = wire.Encode(w.packet[:0], wire.Header{From: w.self.Incarnation, Agent: w.self.Agent, To: p.record.Agent}, w.body)
	w.packet = p.session.AppendMAC(w.packet) // a connected peer has a session
	return w.packet
}

// sendAcks sends what was settled in this pass, one message to each peer.
func (w *owner) sendAcks() {
	for _, p := range w.acksDue {
		p.ackDue = false
		m := &wire.Message{Kind: wire.KindAck}
		lowWater := w.consumer.LowWaterOf(p.id)
		for _, seq := range p.settled {
			if seq >= lowWater && len(m.Settled) < wire.MaxSettled {
				m.Settled = append(m.Settled, seq)
			}
		}
		p.settled = p.settled[:0]
		w.send(p, m)
	}
	w.acksDue = w.acksDue[:0]
}

// fence lets nothing of a lost or silent peer land any more. Where the transport cannot do that, only the proof of its
// death helps.
func (w *owner) fence(p *peer) {
	f, ok := w.cfg.Transport.(transport.Fencer)
	if !ok {
		w.watch(w.cfg.Times.Resend)
		return
	}
	if err := f.Fence(p.record.Agent); err != nil {
		w.log.Warn("kvplane: fence", "peer", p.record.Agent, "err", err)
		return
	}
	w.log.Info("kvplane: silent peer is fenced", "peer", p.record.Agent)
	w.stepConsumer(core.Event{Kind: core.EvFenced, Peer: p.id})
}

// flush takes in what a writer had sent before its end: two whole passes, after the net delay that the core has waited.
func (w *owner) flush(x *core.Effect) {
	// The passes are made from the inbox, so that a poll never runs inside another.
	id, peer, seq := x.ID, x.Peer, x.Seq
	w.enqueue(func() {
		w.poll()
		w.poll()
		w.stepConsumer(core.Event{Kind: core.EvFlushed, Peer: peer, Seq: seq, ID: id})
	})
}
