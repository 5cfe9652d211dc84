// Package metadata owns the names of engines and ranks and what is known of them: the record each rank
// publishes, the stores that keep records (memory, Redis), the local copy that a request reads without waiting,
// and the registry of handshakes, one background job per pair of engines.
//
// It does not decide who may read or write: the caller gives it an Authorizer (package auth has one).
// Engines publish through Client, gateways serve Handler on their agents' listener, and the router asks only
// the local copy and the registry.
package metadata
