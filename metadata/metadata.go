// Package metadata owns the names of engines and ranks and what is known of them: the record each rank publishes, what
// a store is and the one in memory, the local copy that a request reads without waiting, and which engines fit.
//
// It does not decide who may read or write: the caller gives it an Authorizer (package auth has one). It knows neither
// Redis (package redisstore) nor handshakes (package handshake). Engines publish through Client, gateways serve Handler
// on their agents' listener, and the router asks the local copy.
package metadata
