package kvplane

import "errors"

// write plans and posts one write.
func (w *writer) write(p *peer, x *effect) {
	refuse := func(reason Reason, detail string) {
		w.stepProducer(event{kind: evRefused, peer: p.id, seq: x.seq, id: x.id, reason: reason, detail: detail})
	}
	var err error
	if p.plan == nil {
		p.plan, err = NewPair(w.self, p.record, w.cfg.Allow)
	}
	if err == nil {
		w.ranges, err = p.plan.Plan(w.ranges[:0], x.offer.Tokens, x.msg.need, x.offer.Groups, x.msg.groups)
	}
	if err != nil {
		var r *Refusal
		if errors.As(err, &r) {
			refuse(r.Reason, r.Text())
		} else {
			refuse(Unplannable, err.Error())
		}
		return
	}
	if len(w.ranges) == 0 {
		w.stepProducer(event{kind: evNothing, peer: p.id, seq: x.seq, id: x.id, tokens: x.offer.Tokens})
		return
	}
	done := &message{kind: msgDone, seq: x.seq, status: status{state: statusDone, tokens: x.offer.Tokens}}
	w.lastID++
	if err := w.cfg.Transport.Write(p.record.Agent, w.lastID, w.ranges, w.seal(p, done)); err != nil {
		w.log.Warn("kvplane: post", "transfer", x.id, "peer", p.record.Agent, "err", err)
		refuse(SubmitFailed, err.Error())
		return
	}
	o := &write{peer: p, seq: x.seq, id: x.id, tokens: x.offer.Tokens}
	for _, r := range w.ranges {
		o.bytes += r.Length
	}
	w.posted(o)
}
