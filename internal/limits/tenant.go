package limits

import (
	"sync"
	"time"
)

// tenant is what one gateway knows of one tenant. Its shard's lock guards it.
type tenant struct {
	shard *shard
	name  string

	at  time.Duration   // when the buckets were right; since the limiter's beginning
	all [buckets]bucket // owed by all gateways, as far as is known; reserved here

	inFlight    int           // here
	others      load          // at other gateways
	othersUntil time.Duration // when that is too old to be believed

	// What the exchange needs.
	key   string                 // of this tenant, for all gateways
	from  string                 // whose sums these are: this gateway's, of this tenant's present stay in memory
	sum   [buckets]time.Duration // all that was ever charged here
	taken [buckets]time.Duration // of sum, what the exchange is known to have taken
	dirty bool                   // it is in its shard's list
	told  time.Duration          // when it was last told of
	lost  time.Duration          // the first exchange that failed since one went well; 0 if none
}

// load is what requests under way take up. It ends with their gateway.
type load struct {
	inFlight int
	reserved time.Duration // tokens
}

// shard is a part of the tenants, so that requests of different tenants seldom wait for each other.
type shard struct {
	mu      sync.Mutex
	tenants map[string]*tenant
	dirty   []*tenant // what is to be told at the next exchange
	_       [64]byte  // shards are an array: no two locks in one cache line
}

// touchLocked has the tenant told of, and asked after, at the next exchange.
func (t *tenant) touchLocked() {
	if !t.dirty {
		t.dirty = true
		t.shard.dirty = append(t.shard.dirty, t)
	}
}

// refillLocked brings the buckets to the time now.
func (t *tenant) refillLocked(now time.Duration) {
	dt := now - t.at
	if dt <= 0 { // requests that arrive at one time may come here in any order
		return
	}
	t.at = now
	t.all[requests].refill(dt, 0)
	t.all[tokens].refill(dt, t.othersLocked(now).reserved)
}

// chargeLocked takes from a bucket.
func (t *tenant) chargeLocked(bucket int, d time.Duration) {
	t.all[bucket].owed += d
	t.sum[bucket] += d
}

// othersLocked is what other gateways are known to have under way.
func (t *tenant) othersLocked(now time.Duration) load {
	if now > t.othersUntil {
		return load{}
	}
	return t.others
}

// missingLocked is what the buckets lack.
func (t *tenant) missingLocked(now time.Duration) [buckets]time.Duration {
	r, k := &t.all[requests], &t.all[tokens]
	return [buckets]time.Duration{r.owed, k.owed + k.reserved + t.othersLocked(now).reserved}
}

// wantsLocked returns the limit that one more request with these prices would exceed, and when to try again.
func (t *tenant) wantsLocked(now time.Duration, limits Limits, cost [buckets]time.Duration) (Limit, time.Duration, bool) {
	if c := limits.Concurrent; c > 0 && t.inFlight+t.othersLocked(now).inFlight >= c {
		return Concurrent, busyAfter, true
	}
	missing := t.missingLocked(now)
	for b := range cost {
		if wait := missing[b] + cost[b] - full; limits.of(b) > 0 && wait > 0 {
			return Limit(b), min(millis(wait), full), true
		}
	}
	return 0, 0, false
}

// drainedLocked reports whether there is nothing to remember of the tenant.
func (t *tenant) drainedLocked(now time.Duration) bool {
	return t.inFlight == 0 && t.othersLocked(now) == load{} && t.missingLocked(now) == [buckets]time.Duration{}
}
