// Package kvplane has the words of the plane, which moves finished KV blocks from prefill ranks into decode ranks and says when decode may
// start: what an engine offers and expects, what it is told of each transfer and for which reason one fails, and the times that bound
// everything. It does nothing.
//
// An engine opens an agent for each rank (package agent). The protocol between agents is in docs/kvplane.md. The gateway uses none of these
// but the words of package transfer, tickets and the control routes.
package kvplane
