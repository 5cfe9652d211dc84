package limits

import (
	"math"
	"time"
)

// A tenant's buckets, as indices.
const (
	requests = iota
	tokens
	buckets
)

const (
	// full is what a bucket holds.
	full = time.Minute
	// dearest bounds what one request can owe: beyond, sums could overflow.
	dearest = 30 * 24 * time.Hour
	// rounding is what fractions may be off by.
	rounding = 1e-6
)

// bucket is what is missing of a minute's worth, as the time in which it is refilled: a bucket of whatever size holds a
// minute. So requests of one tenant with different limits share one bucket in proportion.
//
// The refill pays first what was used, then what is reserved, all of that at once: each unit of it is spent once. So
// whatever requests reserve and then use, as long as they use no more than that, they use over any time T at most a
// minute's worth and what is refilled in T.
type bucket struct {
	owed     time.Duration // what was used; more than full is debt
	reserved time.Duration // what requests under way may yet use
	log      float64       // logarithm of the part that is left now of what was reserved at the beginning
}

// refill lets dt pass. elsewhere is reserved at other gateways, and shares in the refill.
func (b *bucket) refill(dt, elsewhere time.Duration) {
	paid := min(dt, b.owed)
	b.owed -= paid
	if dt -= paid; dt == 0 || b.reserved == 0 {
		return
	}
	const nothing = 50 // of anything that a bucket can hold, e^-50 is nothing
	left := 1 - float64(dt)/float64(b.reserved+elsewhere)
	if left <= 0 {
		b.reserved = 0
		b.log -= nothing
		return
	}
	b.reserved = time.Duration(float64(b.reserved) * left)
	b.log += math.Log(left)
}

// reserve sets so much aside for a request, and returns what settle wants to know of the time.
func (b *bucket) reserve(d time.Duration) (log float64) {
	b.reserved += d
	return b.log
}

// settle ends a request that reserved so much at the time of log, and returns what it owes of what it has used: what the
// refill has not yet paid. What was paid and not used is not given back: by then it could be more than a bucket holds.
func (b *bucket) settle(reserved time.Duration, log float64, used time.Duration) time.Duration {
	unpaid := time.Duration(float64(reserved) * math.Exp(b.log-log))
	b.reserved = max(0, b.reserved-unpaid)
	return max(0, used-(reserved-unpaid))
}

// of returns what the bucket holds when it is full, in requests or tokens.
func (l Limits) of(bucket int) int {
	if bucket == requests {
		return l.Requests
	}
	return l.Tokens
}

// price is the time in which so much is refilled; 0 if there is no limit.
func price(n, perMinute int) time.Duration {
	if perMinute == 0 || n <= 0 {
		return 0
	}
	return time.Duration(min(float64(n)/float64(perMinute)*float64(full), float64(dearest)))
}

// room describes a bucket of which so much is missing to the caller that may have so much per minute.
func room(perMinute int, missing time.Duration) Room {
	if perMinute == 0 {
		return Room{}
	}
	left := float64(max(0, full-missing)) / float64(full) * float64(perMinute)
	return Room{Limit: perMinute, Left: int(left + rounding), Full: millis(missing)}
}

// millis rounds up to what is told to clients.
func millis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
