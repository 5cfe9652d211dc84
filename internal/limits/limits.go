// Package limits counts what each tenant uses and says whether it may have more: requests and tokens per minute, and
// requests at once. Each gateway counts for itself and never waits; what several gateways have counted is brought together
// through Redis in the background. It knows nothing of HTTP and of credentials.
package limits

import (
	"time"
)

// Limits bound one request's tenant. Zero is no limit.
//
// What may be had per minute is a bucket: it holds a minute's worth, is full at first, and is refilled evenly. So a tenant
// that was idle may use a minute's worth at once, and over any time T at most a minute's worth more than is refilled in T.
// There is no minute that begins, at which everybody comes at once or twice as much is had.
//
// Requests of one tenant may come with different limits. Each is held to its own, and all draw from one bucket in
// proportion: where one with 600 a minute has used 300, half a minute's worth is left to those with 6000 as well, 3000. A
// request without a limit of some kind uses nothing of that kind. A limit that changes holds for what comes from then on.
type Limits struct {
	Requests   int // per minute
	Tokens     int // per minute, prompts and answers together
	Concurrent int // requests of the tenant under way at once, other than those without any limit
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
	After            time.Duration // a millisecond to a minute; who owes more than that is refused again then
	Requests, Tokens Room
}

// busyAfter is when to come back if too many requests are under way: nobody knows when the next one ends.
const busyAfter = time.Second
