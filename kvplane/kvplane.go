// Package kvplane moves finished KV blocks from prefill ranks into decode ranks and says when decode may start.
//
// One Agent per rank, owned by one goroutine; everything else talks to it through its methods. The protocol is in
// docs/kvplane.md: the state machines (consumer.go, producer.go) are pure step functions, the block plan (plan.go)
// is a pure function of two layouts and two block lists, and a Transport (tcp in this package, nixl in
// kvplane/nixl) moves the bytes.
//
// Engines link this package; the gateway uses only its control client.
package kvplane
