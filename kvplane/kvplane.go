// Package kvplane has the types of the KV plane: offers and expectations of an engine, the reports on them, reasons of failure, and times. The
// plane moves finished KV blocks from prefill ranks into decode ranks and says when decode may start. This package does nothing.
//
// One transfer passes these packages: an engine's scheduler gives Orders to its ranks (sched/orders.go); the rank's agent turns them into
// events (agent/agent.go says which file is next), the state machines decide (internal/core/core.go), messages are encoded (wire/message.go),
// the write is planned (plan/plan.go) and moves over a transport (transport/transport.go). The agent's Report goes back to the scheduler, where
// the Aggregator waits for all ranks (sched/aggregator.go) and releases decode. A cancel takes the same way, without plan.
//
// The protocol, the states and what each transport guarantees are in docs/kvplane.md. The gateway uses only packages transfer, ticket and
// control.
package kvplane
