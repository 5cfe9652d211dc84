package router

import (
	"sync"
	"time"
)

// retryWindow is how long the books of retries look back; budgetSlots is into how many parts it is cut.
const (
	retryWindow = 10 * time.Second
	budgetSlots = 10
)

// budget bounds how often requests are tried again, by the router and by clients whom an error invites to: in any retryWindow
// at most percent of the requests that began in it, both together; or floor of either if that is more, so that an invitation
// that nobody follows leaves a model with few requests its retries. It reads no clock, and belongs to who calls it. Its books are slots of a second: the present one and
// those before it that make up the window.
type budget struct {
	percent, floor int
	slots          [budgetSlots]budgetSlot
	at             int64 // number of the present slot since the epoch
}

type budgetSlot struct{ requests, retries, invited int }

// turn forgets what is older than the window. A clock that goes back turns nothing.
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

// has reports whether there may be one more, of what there was own of.
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

// retries is the budget of one model, with what came of it. It outlives a reload.
type retries struct {
	mu      sync.Mutex
	budget  budget
	made    uint64 // retries that were begun
	refused uint64 // requests that failed because there might be no more
}

// setLimits sets what a configuration allows.
func (r *retries) setLimits(percent, floor int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget.percent, r.budget.floor = percent, floor
}

// request notes a request that begins, unless it is its client's own retry: what asked for too much must not earn more.
func (r *retries) request(now time.Time, again bool) {
	if again {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget.request(now)
}

// take asks for one more retry of the router's own.
func (r *retries) take(now time.Time) bool {
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

// invite asks whether a client may be told to try again, which costs engines as much as a retry made here.
func (r *retries) invite(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.budget.invite(now)
}

// counts returns what came of the budget.
func (r *retries) counts() (made, refused uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made, r.refused
}
