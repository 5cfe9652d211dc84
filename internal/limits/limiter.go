package limits

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"pdrouter/internal/redisdb"
)

const (
	shards = 64
	// maxPerShard bounds the memory: about 65,000 tenants that were active within the last minute.
	maxPerShard = 1024
)

// Limiter counts for one gateway. It is safe for concurrent use.
type Limiter struct {
	log     *slog.Logger
	began   time.Time
	gateway string // unlike that of any other gateway, and of this one's earlier life
	shared  exchange
	seed    maphash.Seed
	shards  [shards]shard
	most    int // tenants per shard

	stays    atomic.Uint64 // of tenants in memory, to tell apart
	failures atomic.Uint64
	behind   atomic.Bool
	refused  [limitKinds]atomic.Uint64
}

// New returns a limiter that shares its counts through Redis, under keys that begin with prefix, while Run runs. With
// client nil it counts alone.
func New(client redisdb.Client, prefix string, log *slog.Logger) *Limiter {
	if client == nil {
		return newLimiter(nil, log)
	}
	return newLimiter(&redisExchange{db: client, prefix: prefix + ":limits:"}, log)
}

func newLimiter(shared exchange, log *slog.Logger) *Limiter {
	l := &Limiter{log: log, began: time.Now(), gateway: rand.Text(), shared: shared, seed: maphash.MakeSeed(), most: maxPerShard}
	for i := range l.shards {
		l.shards[i].tenants = map[string]*tenant{}
	}
	return l
}

// Lease is one admitted request. Done ends it.
type Lease struct {
	Requests, Tokens Room // once the request was admitted

	l        *Limiter
	t        *tenant       // nil: there is nothing to end
	limit    int           // of tokens per minute, as it was admitted with
	reserved time.Duration // for its tokens
	log      float64       // of the bucket then
}

// Admit counts one request of the tenant that began at now, or says why not. expected is how many tokens it may use, as far
// as is known: they are reserved, but no more than a minute's worth, until Done charges what was used. A request with more
// than a minute's worth of tokens needs a full bucket and may leave debt. A request that is refused costs nothing.
//
// Admit never waits for other gateways and does not allocate, but for a tenant that it does not know.
func (l *Limiter) Admit(now time.Time, name string, limits Limits, expected int) (Lease, *Refusal) {
	if limits == (Limits{}) {
		return Lease{}, nil
	}
	at := now.Sub(l.began)
	s := &l.shards[maphash.String(l.seed, name)%shards]
	s.mu.Lock()
	t := s.tenants[name]
	if t == nil {
		if len(s.tenants) >= l.most {
			s.mu.Unlock()
			l.refused[Tenants].Add(1)
			return Lease{}, &Refusal{Limit: Tenants, Max: l.most * shards, After: busyAfter}
		}
		t = l.newTenant(s, name, at)
		s.tenants[t.name] = t
	}
	t.refillLocked(at)
	cost := [buckets]time.Duration{price(1, limits.Requests), min(price(expected, limits.Tokens), full)}
	which, after, over := t.wantsLocked(at, limits, cost)
	log := 0.0
	if !over {
		t.inFlight++
		t.chargeLocked(requests, cost[requests])
		log = t.all[tokens].reserve(cost[tokens])
	}
	t.touchLocked() // of a refusal as well: others may have given back since, and nothing else would have this gateway ask
	missing := t.missingLocked(at)
	s.mu.Unlock()
	left, leftTokens := room(limits.Requests, missing[requests]), room(limits.Tokens, missing[tokens])
	if over {
		l.refused[which].Add(1)
		return Lease{}, &Refusal{Limit: which, Max: limits.max(which), After: after, Requests: left, Tokens: leftTokens}
	}
	return Lease{Requests: left, Tokens: leftTokens, l: l, t: t, limit: limits.Tokens, reserved: cost[tokens], log: log}, nil
}

func (l Limits) max(which Limit) int {
	if which == Concurrent {
		return l.Concurrent
	}
	return l.of(int(which))
}

// Done ends the request at now: it has used so many tokens, or what was reserved if used is below 0. Only the first call
// counts, and the zero Lease counts nothing. It must not be called from several goroutines at once, nor on a copy as well.
func (e *Lease) Done(now time.Time, used int) {
	t := e.t
	if t == nil {
		return
	}
	e.t = nil
	cost := price(used, e.limit)
	if used < 0 {
		cost = e.reserved
	}
	t.shard.mu.Lock()
	defer t.shard.mu.Unlock()
	t.refillLocked(now.Sub(e.l.began))
	t.chargeLocked(tokens, t.all[tokens].settle(e.reserved, e.log, cost))
	if t.inFlight--; t.inFlight == 0 {
		t.all[tokens].reserved = 0 // of fractions, something may be left
	}
	t.touchLocked()
}

// newTenant returns a tenant of which nothing is known.
func (l *Limiter) newTenant(s *shard, name string, at time.Duration) *tenant {
	sum := sha256.Sum256([]byte(name)) // who the tenants are is not written into Redis
	return &tenant{
		shard: s, name: strings.Clone(name), at: at,
		key: hex.EncodeToString(sum[:16]), from: l.gateway + "." + strconv.FormatUint(l.stays.Add(1), 36),
	}
}

// Stats are for metrics.
type Stats struct {
	Tenants  int               // that are counted
	Failures uint64            // exchanges that failed
	Behind   bool              // the latest exchange failed: each gateway counts alone
	Refused  map[string]uint64 // by the limit's name
}

// Stats reads what was counted so far.
func (l *Limiter) Stats() Stats {
	s := Stats{Failures: l.failures.Load(), Behind: l.behind.Load(), Refused: make(map[string]uint64, limitKinds)}
	for i := range l.refused {
		s.Refused[Limit(i).String()] = l.refused[i].Load()
	}
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		s.Tenants += len(sh.tenants)
		sh.mu.Unlock()
	}
	return s
}
