// Package core decides what becomes of transfers on one rank, as two pure state machines: the Producer, whose engine offers blocks, and the
// Consumer, whose engine expects them. Step takes one event and appends effects. They perform no I/O, start nothing and read no clock; their
// states are the tables of docs/kvplane.md. Package agent drives them: owner.go turns what happens into events, execute.go carries effects out.
//
// step.go has all events and effects; consumer.go and producer.go have the states.
//
// A transfer on the consumer: consumer_engine.go (EvExpect, EvProducers), consumer_send.go (DoWriteRequest), consumer_status.go (EvStatus until
// DoReport). On the producer: producer_engine.go (EvOffer, EvConsumers), producer_request.go (EvWriteRequest, DoPost), producer_engine.go again
// (EvWritten), producer_transfer.go (settle, DoReport).
//
// A cancel: consumer_engine.go (EvAbandon), consumer_status.go (failTransfer), consumer_send.go (DoCancel), producer_request.go (EvCancel),
// producer_engine.go (EvWritten, EvBroken), consumer_status.go (EvStatus, DoFlush, Reusable).
//
// The other files: heartbeats (consumer_heartbeat.go, producer_heartbeat.go), lost and dead peers (consumer_peer.go, consumer_fence.go), the
// orderly end (consumer_close.go, producer_close.go), leases and tombstones (producer_lease.go), questions of the owner (consumer_answers.go,
// producer_answers.go).
//
// A capital letter of a field or a state says only that the simulator reads it.
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
	lines   []wire.HeartbeatLine // sent in this step
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
