package core

import (
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// What the owner of a producer asks of it. Nothing of it changes the producer but endSession and keepSpent.

// Knows says that an id is the producer's: registered, offered, or ended not long ago.
func (p *Producer) Knows(id kvplane.TransferID) bool { return p.Given[id] != nil }

// Accepted says whether an Offer that it was given was taken, and whether its blocks are held: it may have been given up before.
func (p *Producer) Accepted(o *kvplane.Offer) (taken, held bool) {
	g := p.Given[o.ID]
	if g == nil || g.Offer != o {
		return false, false
	}
	return true, g.State == GivenHeld
}

// Hanging adds the engines that are told again and again how their registrations have ended.
func (p *Producer) Hanging(out map[metadata.Incarnation]bool) {
	for _, s := range p.Sessions {
		if len(s.Regs) > 0 && !s.void {
			out[s.inc] = true
		}
	}
}

// Busy says that a session has registrations.
func (p *Producer) Busy(peer PeerID) bool {
	s := p.Sessions[peer]
	return s != nil && len(s.Regs) > 0
}

// EndSession prepares for the end of a session that is not busy: what is asked later about numbers that may have been written is answered as if
// they had been.
func (p *Producer) EndSession(peer PeerID) {
	if s := p.Sessions[peer]; s != nil && s.burnt > s.Floor {
		p.past = max(p.past, s.burnt)
	}
}

// Counts returns how many registrations are not forgotten, how many offers are held, and how many blocks those have.
func (p *Producer) Counts() (registrations, offers, held int) {
	for _, in := range p.Sessions {
		registrations += len(in.Regs)
	}
	for _, g := range p.Given {
		if g.State == GivenHeld || g.State == givenDraining {
			offers++
			held += transfer.CountBlocks(g.Offer.Groups)
		}
	}
	return registrations, offers, held
}

// KeepSpent takes over what an older table had spent. Their sessions are gone, the ids are not.
func (p *Producer) KeepSpent(old *Producer, now time.Duration) {
	ended := slices.Clone(old.spent.all[old.spent.from:])
	served := len(ended)
	for _, g := range old.Given {
		if g.State == GivenSpent && g.Offer == nil {
			ended = append(ended, g)
		}
	}
	slices.SortFunc(ended[served:], func(a, b *given) int { return a.ID.Compare(b.ID) })
	for _, g := range ended {
		if g.State != GivenSpent || old.Given[g.ID] != g || p.Given[g.ID] != nil {
			continue
		}
		kept := &given{ID: g.ID, State: GivenSpent, Offer: g.Offer, reason: g.reason, detail: g.detail, wake: max(g.wake, now+1)}
		p.Given[g.ID] = kept
		if kept.Offer == nil {
			p.unborn++
		} else {
			p.spent.push(kept)
		}
		p.timers.Set(kept)
	}
}
