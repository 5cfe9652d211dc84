package admission

import (
	"sync"
	"time"
)

// retryWindow is the time over which retries are counted. It is divided into budgetSlots.
const (
	retryWindow = 10 * time.Second
	budgetSlots = 10
)

// budget bounds how often requests are tried again: by the gateway (retries), and by clients whom an error tells to try again
// (invitations). In any retryWindow, both together are at most percent of the requests that began in it. Up to floor of each are
// allowed in any case, so that invitations that no client follows do not use up the retries of a model with few requests. It reads no
// clock and has no lock. The window is the current slot of one second and the slots before it.
type budget struct {
	percent, floor int
	slots          [budgetSlots]budgetSlot
	at             int64 // number of the current slot since the epoch
}

type budgetSlot struct{ requests, retries, invited int }

// turn forgets what is older than the window. It does nothing if the clock has gone back.
func (b *budget) turn(now time.Time) {
	at := now.UnixNano() / int64(retryWindow/budgetSlots)
	for n := min(at-b.at, budgetSlots); n > 0; n-- {
		b.slots[(at-n+1)%budgetSlots] = budgetSlot{}
	}
	b.at = max(b.at, at)
}

// request notes a request that begins.
func (b *budget) request(now time.Time) {
	b.turn(now)
	b.slots[b.at%budgetSlots].requests++
}

// take notes one more retry, or returns false if there may be none.
func (b *budget) take(now time.Time) bool {
	b.turn(now)
	sum := b.sum()
	if !b.has(sum.retries, sum) {
		return false
	}
	b.slots[b.at%budgetSlots].retries++
	return true
}

// invite notes that a client is told to try again, or returns false if none may be.
func (b *budget) invite(now time.Time) bool {
	b.turn(now)
	sum := b.sum()
	if !b.has(sum.invited, sum) {
		return false
	}
	b.slots[b.at%budgetSlots].invited++
	return true
}

// has reports whether one more is allowed of a kind that has own so far.
func (b *budget) has(own int, sum budgetSlot) bool {
	return own < b.floor || sum.retries+sum.invited < sum.requests*b.percent/100
}

// sum adds up the window.
func (b *budget) sum() (sum budgetSlot) {
	for _, s := range b.slots {
		sum.requests += s.requests
		sum.retries += s.retries
		sum.invited += s.invited
	}
	return sum
}

// RetryBudget is the retry budget of one model and its counters. It is safe for concurrent use. A reload of the configuration changes
// its limits and nothing else.
type RetryBudget struct {
	mu      sync.Mutex
	budget  budget
	made    uint64 // retries that were begun
	refused uint64 // requests that failed because there might be no more
}

// SetLimits sets what a configuration allows.
func (r *RetryBudget) SetLimits(percent, floor int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget.percent, r.budget.floor = percent, floor
}

// Started counts a request that begins. again: it is a retry of its client, which must not add to the budget.
func (r *RetryBudget) Started(now time.Time, again bool) {
	if again {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget.request(now)
}

// Retry reports whether the gateway may try a request again, and counts it.
func (r *RetryBudget) Retry(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ok := r.budget.take(now)
	if ok {
		r.made++
	} else {
		r.refused++
	}
	return ok
}

// Invite reports whether a client may be told to try again, and counts it: that costs engines as much as a retry of the gateway.
func (r *RetryBudget) Invite(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.budget.invite(now)
}

// Counts returns how many retries began, and how many were refused.
func (r *RetryBudget) Counts() (made, refused uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made, r.refused
}
