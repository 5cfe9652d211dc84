package limits

import (
	"sync"
	"time"
)

// tenant is what one gateway knows of one tenant. Its shard's lock guards it.
type tenant struct {
	shard  *shard
	name   string
	limits Limits // the latest that it came with

	at    time.Duration    // when spent was right; since the limiter's beginning
	spent [buckets]float64 // what is missing in each bucket, by all gateways as far as is known; above a minute's worth it is debt

	inFlight    int           // here
	others      int           // at other gateways
	othersUntil time.Duration // when others is too old to be believed

	// What the exchange needs.
	key   string         // of this tenant, for all gateways
	from  string         // whose sums these are: this gateway's, of this tenant's present stay in memory
	sum   [buckets]int64 // all that was ever charged here, less what was given back
	taken [buckets]int64 // of sum, what the exchange is known to have taken
	dirty bool           // it is in its shard's list
	told  time.Duration  // when it was last told of
	lost  time.Duration  // the first exchange that failed since one went well; 0 if none
}

// shard is a part of the tenants, so that requests of different tenants seldom wait for each other.
type shard struct {
	mu      sync.Mutex
	tenants map[string]*tenant
	dirty   []*tenant // what is to be told at the next exchange
	_       [64]byte  // shards are an array: no two locks in one cache line
}

// touchLocked has the tenant told of at the next exchange.
func (t *tenant) touchLocked() {
	if !t.dirty {
		t.dirty = true
		t.shard.dirty = append(t.shard.dirty, t)
	}
}

// refillLocked brings the buckets to the time now.
func (t *tenant) refillLocked(now time.Duration) {
	dt := (now - t.at).Seconds()
	if dt <= 0 { // requests that arrive at one time may come here in any order
		return
	}
	t.at = now
	for b := range t.spent {
		switch holds := t.limits.of(b); {
		case holds == 0: // there was a limit before
			t.spent[b] = 0
		case t.spent[b] > 0:
			t.spent[b] = max(0, t.spent[b]-rate(holds)*dt)
		}
	}
}

// chargeLocked spends from a bucket, or gives back.
func (t *tenant) chargeLocked(bucket, n int) {
	if t.limits.of(bucket) == 0 {
		return
	}
	t.spent[bucket] = max(0, t.spent[bucket]+float64(n))
	t.sum[bucket] += int64(n)
}

// othersLocked is how many requests other gateways are known to have under way.
func (t *tenant) othersLocked(now time.Duration) int {
	if now > t.othersUntil {
		return 0
	}
	return t.others
}

// wantsLocked returns the limit that one more request with so many tokens would exceed, and when it would not.
func (t *tenant) wantsLocked(now time.Duration, cost int) (Limit, time.Duration, bool) {
	if c := t.limits.Concurrent; c > 0 && t.inFlight+t.othersLocked(now) >= c {
		return Concurrent, busyAfter, true
	}
	for b, n := range [buckets]int{requests: 1, tokens: cost} {
		holds := t.limits.of(b)
		if holds == 0 {
			continue
		}
		// What is larger than the bucket could never be had: it may have a full bucket, and leaves it in debt.
		over := t.spent[b] + float64(min(n, holds)) - float64(holds)
		if over > rounding {
			return Limit(b), refillTime(holds, over), true
		}
	}
	return 0, 0, false
}

// drainedLocked reports whether there is nothing to remember of the tenant.
func (t *tenant) drainedLocked() bool {
	return t.inFlight == 0 && t.spent == [buckets]float64{}
}
