package auth

import (
	"container/heap"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxSpent bounds how many tokens of single use are remembered per issuer.
const maxSpent = 100_000

// spent remembers the ids of an issuer's tokens that were used, until none of them could pass again. It never forgets one
// earlier, whatever is asked of it and whoever sets the clock: when it is full, no further token is accepted.
type spent struct {
	limit int

	mu   sync.Mutex
	byID map[string]struct{}
	ends spentHeap // the same ids, the first to end at the front
}

// spentID is one id and when it may be forgotten. It must be over by both clocks: one that is set forward and back again
// would revive a token that was forgotten in between.
type spentID struct {
	id   string
	wall time.Time
	mono time.Time
}

func newSpent(limit int) *spent { return &spent{limit: limit, byID: map[string]struct{}{}} }

// use takes an id that was not used before. until is when its token ends, leeway included. The error is an *Error.
func (s *spent) use(id string, until time.Time, at moment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ends) > 0 && !at.wall.Before(s.ends[0].wall) && !at.mono.Before(s.ends[0].mono) {
		delete(s.byID, heap.Pop(&s.ends).(spentID).id)
	}
	if _, ok := s.byID[id]; ok {
		return invalid(errors.New("this token of single use was used before"))
	}
	if len(s.byID) >= s.limit {
		return &Error{Code: ReplayCacheFull, Err: fmt.Errorf("%d tokens of single use are under way", len(s.byID))}
	}
	s.byID[id] = struct{}{}
	heap.Push(&s.ends, spentID{id: id, wall: until, mono: at.mono.Add(until.Sub(at.wall))})
	return nil
}

// spentHeap orders ids by the end of their tokens on the wall clock.
type spentHeap []spentID

func (h spentHeap) Len() int           { return len(h) }
func (h spentHeap) Less(i, j int) bool { return h[i].wall.Before(h[j].wall) }
func (h spentHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *spentHeap) Push(x any)        { *h = append(*h, x.(spentID)) }
func (h *spentHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = spentID{}
	*h = (*h)[:last]
	return x
}
