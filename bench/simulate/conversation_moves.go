package simulate

import (
	"slices"
	"strconv"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/router/fleet"
	"pdrouter/router/migration"
)

// carried is a move under way.
type carried struct {
	*migration.Planned
	of    *conversation
	seq   *sim.ModelSeq
	at    *engine // that has seq
	reads bool    // the target reads
	ended bool
	next  *turn // that waits for it; nil: none
}

// carry begins a move. A turn may wait for it.
func (k *conversations) carry(w *migration.Planned, of *conversation, next *turn) error {
	m := &carried{Planned: w, of: of, next: next}
	k.under = append(k.under, m)
	k.moves++
	k.later(k.now+w.Within, func() error { return k.over(m, migration.Late) })
	return k.submitMove(m, w.From, sim.PrefillLeg, "move "+strconv.Itoa(k.moves))
}

// submitMove gives an engine its part in a move.
func (k *conversations) submitMove(m *carried, to *fleet.Engine, part sim.ModelLeg, key string) error {
	m.at = k.engines[slices.Index(k.gateway, to)]
	m.seq = &sim.ModelSeq{Leg: part, Key: key, Prompt: len(m.IDs), Answer: 1, Runs: runsOf(load.Request{Blocks: m.of.blocks}, len(m.IDs)), Owner: m}
	m.at.known.InFlight++
	return k.fleet.Submit(m.at.nth, m.seq)
}

// heard notes that an engine has done its part in a move.
func (k *conversations) heard(t sim.ModelToken) {
	m := t.Seq.Owner.(*carried)
	switch {
	case m.ended:
	case t.Err != nil:
		k.fail(k.over(m, migration.Failed))
	case m.reads:
		k.fail(k.over(m, migration.Moved))
	default:
		m.reads = true
		m.at.known.InFlight--
		k.fail(k.submitMove(m, m.To, sim.DecodeLeg, t.Seq.Key))
	}
}

// over ends a move, if it has not ended, and gives the turn that waits for it to engines.
func (k *conversations) over(m *carried, result migration.Result) error {
	if m.ended {
		return nil
	}
	m.ended = true
	k.under = slices.DeleteFunc(k.under, func(o *carried) bool { return o == m })
	if k.due = true; result != migration.Moved {
		k.fleet.Cancel(m.seq)
	}
	m.at.known.InFlight--
	if k.plans.Ended(m.Planned, result, fleet.At(k.now)); result == migration.Moved {
		k.hold(m.of, len(m.IDs), m.at)
	}
	if m.next == nil {
		return nil
	}
	return k.ask(m.next)
}
