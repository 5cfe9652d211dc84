// Package core decides what becomes of transfers on one rank, as two pure values: the Producer, whose engine offers blocks, and the Consumer,
// whose engine expects them. Step takes one event and returns effects. They perform no I/O, start nothing and read no clock; their states
// are the tables of docs/kvplane.md. The owner in package agent drives them: it turns what happens into events, carries effects out, and asks
// what stands in producer_answers.go and consumer_answers.go.
//
// Fields are exported for the simulator alone, which checks what must hold and breaks the rules one by one.
package core

import (
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/wire"
)

// core is what producer and consumer have in common: the step that they are in, and what they keep beyond it.
type core struct {
	Times   kvplane.Times
	timers  alarm.Timers
	closing bool
	beats   []wire.Beat // sent in this step
	Out     []Effect
	Now     time.Duration
}

// Next returns when the earliest timer is due, 0 if there is none.
func (c *core) Next() time.Duration { return c.timers.Next() }

func (c *core) emit(x Effect) { c.Out = append(c.Out, x) }

// drop counts an event without effect.
func (c *core) drop(e Event, why Drop) {
	c.emit(Effect{Do: DoDrop, Peer: e.Peer, Seq: e.Seq, ID: e.ID, Drop: why})
}
