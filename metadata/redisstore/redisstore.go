// Package redisstore owns the store that several gateways share over Redis: its keys, its scripts and its announcements.
//
// It does not open Redis (package internal/redisdb does) and keeps no copy of what it reads (package cache does). Only the
// gateway's command uses it: engines do not link it.
package redisstore

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/metadata"
)

// Store is a metadata.Store that several gateways share: one server, a master that Sentinels name, or a cluster. A record lies
// under a key of its engine, generation and rank, whose TTL is its lease; beside them a hash keeps the engine's newest
// generation and when each rank was published, so that a script can refuse whatever is stale in one step. A server that
// lost what it held, in a restart or a failover, takes whatever is published first: it knows nothing newer. The record
// that is newer comes back with its next renewal, and a Cache that has seen it never goes back.
type Store struct {
	db      redis.UniversalClient
	prefix  string // of every key and of the channel
	voucher metadata.Voucher
	log     *slog.Logger

	probing time.Duration // how often a subscription is probed; see the constant

	swept      atomic.Int64 // when Put last cleaned up the index, in nanoseconds since 1970
	quarantine quarantine
}

// indexSweep is how often Put removes from the index the engines whose fence is not kept any more.
const indexSweep = time.Minute

// New returns a store over a Redis whose keys and channel begin with prefix. voucher checks every value that is
// read, and values that fail are passed over; nil believes what Redis holds. The caller closes db.
func New(db redis.UniversalClient, prefix string, voucher metadata.Voucher, log *slog.Logger) *Store {
	return &Store{db: db, prefix: prefix, voucher: voucher, log: log, probing: probing}
}

// Quarantined returns how many values were read that could not be trusted or understood.
func (s *Store) Quarantined() uint64 { return s.quarantine.count() }

// The braces make Redis Cluster keep all keys of an engine in one slot.
func (s *Store) engineKey(engine string) string { return s.prefix + ":{" + engine + "}" }

func (s *Store) rankKey(inc metadata.Incarnation, rank string) string {
	return s.engineKey(inc.Engine) + ":" + padded(inc.Generation) + ":" + rank
}

func (s *Store) channel() string  { return s.prefix + ":changes" }
func (s *Store) indexKey() string { return s.prefix + ":engines" }

// padded writes a number so that the order of the strings is the order of the numbers: Lua's numbers are floats and
// would take neighbouring generations for equal.
func padded(n uint64) string { return fmt.Sprintf("%020d", n) }

func parsePadded(s string) (uint64, error) {
	if len(s) != 20 {
		return 0, fmt.Errorf("generation %.40q has not 20 digits", s)
	}
	return strconv.ParseUint(s, 10, 64)
}
