package agent

import (
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
)

// do carries out one effect.
func (w *writer) do(x *effect) {
	p := w.peers[x.peer]
	switch x.do {
	case doReport:
		w.report(x)
		return
	case doDrop:
		w.drops[x.drop]++
		return
	case doDrain:
		w.drain(x)
		return
	case doSeek:
		if r := w.consumer.receipts[x.id]; r != nil && r.unpaired {
			w.seek(x.id, r.inc)
		}
		return
	}
	if p == nil {
		return // gone
	}
	switch x.do {
	case doStatus:
		w.send(p, &wire.Message{Kind: wire.KindStatus, Seq: x.seq, Status: x.status})
	case doRegister:
		m := &wire.Message{
			Kind: wire.KindRegister, Seq: x.seq, ID: x.id, Need: x.expect.Need, Groups: x.expect.Groups,
			Ticket: x.expect.Ticket, Hash: x.expect.Hash, Wait: x.wait,
		}
		if p.admitted == 0 || w.now()-p.admitted >= w.cfg.Times.Resend/2 {
			w.send(p, m)
		} // else its connection was cut just now, and a write before it has seen that would fail; this is sent again soon
		if x.k > 0 { // it does not answer: its rank may have been rebuilt
			p.unsure = true
			w.doubt(p)
		}
	case doCancel:
		w.send(p, &wire.Message{Kind: wire.KindCancel, Seq: x.seq, ID: x.id, Why: x.reason.String()})
		if x.k > 0 {
			w.doubt(p)
		}
	case doFloor:
		if !p.owed {
			p.owed = true
			w.tell = append(w.tell, p)
		}
		p.settled = append(p.settled, x.seq)
	case doBeat:
		w.send(p, &wire.Message{Kind: wire.KindBeat, Beats: x.beats})
	case doBeatAck:
		w.send(p, &wire.Message{Kind: wire.KindBeatAck, Beats: x.beats})
	case doBye:
		w.send(p, &wire.Message{Kind: wire.KindBye})
	case doFence:
		w.fence(p)
	case doAdmit:
		// Whatever it had posted behind the fence has ended; the second fence makes sure that nothing of it is left on
		// a connection that came after the first.
		if f, ok := w.cfg.Transport.(transport.Fencer); ok && f.Fence(p.record.Agent) == nil {
			f.Admit(p.record.Agent)
			p.admitted = w.now()
			w.log.Info("kvplane: fenced peer is admitted again", "peer", p.record.Agent)
		}
	case doPair:
		w.again(p)
	case doPost:
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
	if s := w.consumer.sessions[p.id]; s != nil {
		m.Floor = s.floor
	}
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
		floor := uint64(0)
		if s := w.consumer.sessions[p.id]; s != nil {
			floor = s.floor
		}
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
	w.stepConsumer(event{kind: evFenced, peer: p.id})
}

// drain takes in what a writer had sent before its end: two whole passes, after the net delay that the core has waited.
func (w *writer) drain(x *effect) {
	// The passes are made from the inbox, so that a poll never runs inside another.
	id, peer, seq := x.id, x.peer, x.seq
	w.later(func() {
		w.poll()
		w.poll()
		w.stepConsumer(event{kind: evDrained, peer: peer, seq: seq, id: id})
	})
}
