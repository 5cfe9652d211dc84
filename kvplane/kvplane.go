// Package kvplane has the types of the KV plane: offers and expectations of an engine, the reports on them, reasons of failure, and times. The
// plane moves finished KV blocks from prefill ranks into decode ranks and says when decode may start. This package does nothing.
//
// One transfer passes these packages: an engine's scheduler gives Orders to its ranks (sched/orders.go); the rank's agent turns them into
// events (agent/agent.go says which file is next), the state machines decide (internal/core/core.go), messages are encoded (wire/message.go),
// the write is planned (plan/plan.go) and moves over a transport (transport/transport.go). The agent's Report goes back to the scheduler, where
// the Aggregator waits for all ranks (sched/aggregator.go) and releases decode. A cancel of the gateway comes by control to the scheduler (embed), whose Orders abandon the transfer.
//
// P is the rank that writes, D the one that receives; D never reads. An engine's run is its generation; it is void when a newer one is known, which
// does not prove that it is dead. Blocks are in quarantine while something may still land in them.
//
// The protocol, the states, what each transport guarantees, a picture and a glossary are in docs/kvplane.md: begin there. The gateway's routing
// uses only packages transfer, ticket and control.
package kvplane
