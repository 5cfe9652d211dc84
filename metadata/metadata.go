// Package metadata owns the names of engines and ranks and what is known of them: the record that each rank publishes and its wire
// form, who vouches for it, what a store of records is, which engines fit, and what requests to the metadata routes carry besides
// records. It does no I/O and serves nothing; it imports none of the packages below it.
//
// The packages store and redisstore keep records, in this process and in Redis. Package cache is a gateway's local copy of a store,
// which a request reads without waiting. Package routes serves records to agents, package client publishes and reads them for
// engines. Package handshake has pairs shake hands, package vllm asks stock vLLM.
//
// Read record.go, validate.go, codec.go and scan.go (the wire form), binding.go, store.go with bulk.go, content.go and superseded.go,
// pair.go, maps.go, and then wire.go.
package metadata
