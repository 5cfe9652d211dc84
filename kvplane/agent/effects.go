package agent

import (
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// do carries out one effect.
func (w *writer) do(x *core.Effect) {
	p := w.peers[x.Peer]
	switch x.Do {
	case core.DoReport:
		w.report(x)
		return
	case core.DoDrop:
		w.drops[x.Drop]++
		return
	case core.DoDrain:
		w.drain(x)
		return
	case core.DoSeek:
		if from, ok := w.consumer.UnpairedWith(x.ID); ok {
			w.seek(x.ID, from)
		}
		return
	}
	if p == nil {
		return // gone
	}
	switch x.Do {
	case core.DoStatus:
		w.send(p, &wire.Message{Kind: wire.KindStatus, Seq: x.Seq, Status: x.Status})
	case core.DoRegister:
		m := &wire.Message{
			Kind: wire.KindRegister, Seq: x.Seq, ID: x.ID, Need: x.Expect.Need, Groups: x.Expect.Groups,
			Ticket: x.Expect.Ticket, Hash: x.Expect.Hash, Wait: x.Wait,
		}
		if p.admitted == 0 || w.now()-p.admitted >= w.cfg.Times.Resend/2 {
			w.send(p, m)
		} // else its connection was cut just now, and a write before it has seen that would fail; this is sent again soon
		if x.K > 0 { // it does not answer: its rank may have been rebuilt
			p.unsure = true
			w.doubt(p)
		}
	case core.DoCancel:
		w.send(p, &wire.Message{Kind: wire.KindCancel, Seq: x.Seq, ID: x.ID, Why: x.Reason.String()})
		if x.K > 0 {
			w.doubt(p)
		}
	case core.DoFloor:
		if !p.owed {
			p.owed = true
			w.tell = append(w.tell, p)
		}
		p.settled = append(p.settled, x.Seq)
	case core.DoBeat:
		w.send(p, &wire.Message{Kind: wire.KindBeat, Beats: x.Beats})
	case core.DoBeatAck:
		w.send(p, &wire.Message{Kind: wire.KindBeatAck, Beats: x.Beats})
	case core.DoBye:
		w.send(p, &wire.Message{Kind: wire.KindBye})
	case core.DoFence:
		w.fence(p)
	case core.DoAdmit:
		// Whatever it had posted behind the fence has ended; the second fence makes sure that nothing of it is left on
		// a connection that came after the first.
		if f, ok := w.cfg.Transport.(transport.Fencer); ok && f.Fence(p.record.Agent) == nil {
			f.Admit(p.record.Agent)
			p.admitted = w.now()
			w.log.Info("kvplane: fenced peer is admitted again", "peer", p.record.Agent)
		}
	case core.DoPair:
		w.again(p)
	case core.DoPost:
		w.write(p, x)
	}
}

// send seals a message and gives it to the transport. What is lost is sent again by whoever waits for the answer.
func (w *writer) send(p *peer, m *wire.Message) {
	if p.gone {
		return
	}
	if !p.connected {
		w.again(p)
		return
	}
	m.Floor = w.consumer.FloorOf(p.id)
	w.active = w.now()
	w.spoke, p.used = w.active, w.active
	if err := w.cfg.Transport.Send(p.record.Agent, w.seal(p, m)); err != nil {
		p.unsure = true
		w.log.Debug("kvplane: send", "peer", p.record.Agent, "err", err)
	}
}

func (w *writer) seal(p *peer, m *wire.Message) []byte {
	w.body = wire.Append(w.body[:0], m)
	w.sealed = wire.Seal(w.sealed[:0], wire.Envelope{From: w.self.Incarnation, Agent: w.self.Agent, To: p.record.Agent}, w.body)
	w.sealed = p.session.Sign(w.sealed) // there is one with whoever is connected
	return w.sealed
}

// tellSettled sends what was settled in this pass, one message to each peer.
func (w *writer) tellSettled() {
	for _, p := range w.tell {
		p.owed = false
		m := &wire.Message{Kind: wire.KindFloor}
		floor := w.consumer.FloorOf(p.id)
		for _, seq := range p.settled {
			if seq >= floor && len(m.Settled) < wire.MaxSettled {
				m.Settled = append(m.Settled, seq)
			}
		}
		p.settled = p.settled[:0]
		w.send(p, m)
	}
	w.tell = w.tell[:0]
}

// fence lets nothing of a lost or silent peer land any more. Where the transport cannot do that, only the proof of its
// death helps.
func (w *writer) fence(p *peer) {
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

// drain takes in what a writer had sent before its end: two whole passes, after the net delay that the core has waited.
func (w *writer) drain(x *core.Effect) {
	// The passes are made from the inbox, so that a poll never runs inside another.
	id, peer, seq := x.ID, x.Peer, x.Seq
	w.later(func() {
		w.poll()
		w.poll()
		w.stepConsumer(core.Event{Kind: core.EvDrained, Peer: peer, Seq: seq, ID: id})
	})
}
