// Package sched has what the scheduler of an engine and its ranks exchange in each step: Orders to all ranks, a RankReport from each. Both are
// plain data with a msgpack form (wire.go, pack.go). The Aggregator reduces the RankReports of a step to one Outcome for the scheduler
// (aggregator.go); for each transfer a RankBarrier waits for all ranks (rank_barrier.go). The package performs no I/O and reads no clock.
//
// The scheduler calls Aggregator.Order and hands the Orders to its ranks; each rank calls Agent.Do, later Agent.Collect (agent/collect.go); the
// scheduler calls Aggregator.Step. Outcome.Released starts decode; Outcome.Closed and Outcome.Freed free blocks.
package sched

import (
	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// Orders are what an engine's scheduler tells all its ranks in one step. They are plain data with a msgpack form, so
// that they may cross to ranks in other processes. The zero value orders nothing. Every rank gets the same Orders:
// the slices must not be changed once they are given out.
type Orders struct {
	Queue   []Queued
	Expect  []kvplane.Expectation
	Offer   []kvplane.Offer
	Abandon []Abandonment
}

// Queued says that a decode leg waits for free blocks, so that its producer keeps the lease until it expects them. It
// is to be said again, well within Times.Queue, as long as that is so.
type Queued struct {
	ID   kvplane.TransferID
	Peer metadata.Incarnation // the producer engine
}

// Abandonment gives a transfer up, whichever side it is on, known already or not.
type Abandonment struct {
	ID  kvplane.TransferID
	Why string // for people
}

// Empty says that there is nothing to tell.
func (o *Orders) Empty() bool {
	return len(o.Queue)+len(o.Expect)+len(o.Offer)+len(o.Abandon) == 0
}

// MaxPending bounds the transfers in a RankReport that wait for a handshake. Its Reports are never dropped: there are at most two for each
// Expectation, one for each Offer, and the engine orders no more while it has no blocks.
const MaxPending = 1 << 12

// RankReport is what one rank has to say in one step. It is plain data with a msgpack form. Reports are those
// since the rank's last one; Handshakes and Pending are how things stand.
type RankReport struct {
	Engine  metadata.Incarnation
	Rank    metadata.Rank
	Seq     uint64 // numbers those that have Reports, from 1; one without repeats the last number
	Reports []kvplane.Report
	// Handshakes is how many peer engines' records are being looked up, Pending which transfers wait for them, at most
	// MaxPending of them.
	Handshakes int
	Pending    []kvplane.TransferID
}
