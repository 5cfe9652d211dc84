package agent

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
)

// core is what producer and consumer have in common: the step that they are in, and what they keep beyond it.
type core struct {
	times   kvplane.Times
	timers  alarm.Timers
	closing bool
	beats   []wire.Beat // sent in this step
	out     []effect
	now     time.Duration
}

func (c *core) emit(x effect) { c.out = append(c.out, x) }

// drop counts an event without effect.
func (c *core) drop(e event, why drop) {
	c.emit(effect{do: doDrop, peer: e.peer, seq: e.seq, id: e.id, drop: why})
}
