// Package limits counts what each tenant uses and says whether it may have more: requests and tokens per minute, and
// requests at once. Each gateway counts for itself and never waits; what several gateways have counted is brought together
// through Redis in the background. It knows nothing of HTTP and of credentials.
package limits

import (
	"time"
)

// Limits bound one tenant. Zero is no limit.
//
// What may be had per minute is a bucket: it holds a minute's worth, is full at first, and is refilled evenly. So a tenant
// that was idle may use a minute's worth at once, and over any time T at most a minute's worth more than is refilled in T.
// There is no minute that begins, at which everybody comes at once or twice as much is had.
type Limits struct {
	Requests   int // per minute
	Tokens     int // per minute, prompts and answers together
	Concurrent int // requests under way at once
}

// Limit is what a tenant may not exceed.
type Limit uint8

// The limits. Tenants is the gateway's own: it counts so many tenants and no more.
const (
	Requests Limit = iota
	Tokens
	Concurrent
	Tenants
	limitKinds
)

// String is the limit's name in metrics and answers.
func (l Limit) String() string {
	return [...]string{"requests", "tokens", "concurrent", "tenants"}[l]
}

// Room is what is left of a bucket.
type Room struct {
	Limit int           // what it holds when it is full; 0 if there is no limit
	Left  int           // what could be had now
	Full  time.Duration // until it is full again, if nothing is used
}

// Refusal says which limit would be exceeded, and when it is worth another try.
type Refusal struct {
	Limit            Limit
	Max              int           // the limit
	After            time.Duration // at least a millisecond
	Requests, Tokens Room
}

const (
	// busyAfter is when to come back if too many requests are under way: nobody knows when the next one ends.
	busyAfter = time.Second
	// rounding is what sums of fractions may be off by.
	rounding = 1e-6
)

// The two buckets of a tenant, as indices.
const (
	requests = iota
	tokens
	buckets
)

// of returns what the bucket holds when it is full.
func (l Limits) of(bucket int) int {
	if bucket == requests {
		return l.Requests
	}
	return l.Tokens
}

// rate is how fast a bucket of a minute's worth is refilled, per second.
func rate(perMinute int) float64 { return float64(perMinute) / 60 }

// room describes a bucket of which so much is spent.
func room(perMinute int, spent float64) Room {
	if perMinute == 0 {
		return Room{}
	}
	return Room{
		Limit: perMinute,
		Left:  max(0, int(float64(perMinute)-spent+rounding)),
		Full:  refillTime(perMinute, spent),
	}
}

// refillTime is how long it takes to refill so much, in whole milliseconds and at least one, unless it is nothing.
func refillTime(perMinute int, amount float64) time.Duration {
	if amount <= 0 {
		return 0
	}
	const longest = 1 << 40 // milliseconds; a wait beyond is of no use to anybody
	ms := min(amount/rate(perMinute)*1000, longest)
	return (time.Duration(ms) + 1) * time.Millisecond
}
