package simulate

import (
	"fmt"
	"slices"
	"time"

	"pdrouter/bench/sim"
	"pdrouter/router/fleet"
	"pdrouter/router/migration"
)

// Change is what happens to an engine at a time.
type Change struct {
	At   time.Duration
	Kind ChangeKind
}

// ChangeKind says what happens.
type ChangeKind uint8

const (
	Drain ChangeKind = iota // an engine takes no more requests, and is gone after leaves
	Lose                    // an engine is gone with all that it has: its requests go to others
	Add                     // an engine begins to serve, with nothing in its cache
)

var changeKinds = [...]string{"drain", "lose", "add"}

func (k ChangeKind) String() string { return changeKinds[k] }

// leaves is how long an engine that drains is there.
const leaves = 30 * time.Second

// change lets an engine come or go. Those that are there at the beginning go first, which of them depends on the seed.
func (k *conversations) change(kind ChangeKind) error {
	i, first := -1, k.spec.Either
	for n := range k.engines {
		if n < first {
			n = (n + int(k.Seed)) % first
		}
		e := k.gateway[n]
		if unused := e.Down.Load() && e.Generation.Load() == 1; unused && kind == Add || e.Usable() && kind != Add {
			i = n
			break
		}
	}
	if i < 0 {
		return fmt.Errorf("bench: simulate: at %v there is no engine left to %s", k.now, kind)
	}
	e := k.gateway[i]
	switch kind {
	case Drain:
		e.Draining.Store(true)
		k.later(k.now+leaves, func() error { k.gone(i); return nil })
	case Lose:
		k.lost[i] = true
		k.gone(i)
	case Add:
		e.Generation.Add(1)
		e.Restored(fleet.At(k.now))
	}
	k.engines[i].known.Usable = kind == Add
	k.plans.Update(&k.snapshot, fleet.At(k.now))
	if k.due = true; kind != Lose {
		return nil
	}
	for _, x := range slices.Clone(k.turns) { // those that it has a part in begin anew, or go on elsewhere
		l := x.leg
		if l == nil || l.engine != k.engines[i] && (l.first == nil || l.begun || l.first.engine != k.engines[i]) {
			continue
		}
		k.cancel(l)
		k.cancel(l.first)
		x.Input, x.Output = x.outcome.Prompt+len(x.outcome.Chunks), x.outcome.Tokens-len(x.outcome.Chunks)
		k.came.Again++
		k.fail(k.ask(x))
	}
	return nil
}

// gone has an engine be away, and all that it has.
func (k *conversations) gone(i int) {
	e := k.engines[i]
	k.gateway[i].Down.Store(true)
	k.gateway[i].Generation.Add(1)
	k.fleet.Restart(i)
	k.index.Leave(e.holder)
	e.holder = k.index.Join(k.Costs.Blocks * sim.BlockTokens)
	for _, m := range slices.Clone(k.under) {
		if m.From == k.gateway[i] || m.To == k.gateway[i] {
			k.fail(k.over(m, migration.Failed))
		}
	}
}

// cancel ends a leg that its engine will not end.
func (k *conversations) cancel(l *leg) {
	if l == nil || l.ended > 0 {
		return
	}
	k.fleet.Cancel(l.seq)
	l.engine.known.InFlight--
	l.engine.known.Backlog -= l.unread
	l.engine.work.End(&l.work, k.now.Seconds())
	if l.chain != nil {
		k.index.Return(l.reserved)
	}
	l.unread, l.ended = 0, k.now
}
