package admission

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestBudgetAgainstOracle compares the slots with a list of all that ever was.
func TestBudgetAgainstOracle(t *testing.T) {
	const slot = int64(retryWindow / budgetSlots)
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 65))
		b := budget{percent: 20, floor: 3}
		now := time.Unix(1_700_000_000, rng.Int64N(slot))
		var requests, retries, invited []int64 // their slots
		within := func(list []int64) (n int) {
			for _, at := range list {
				if at > now.UnixNano()/slot-budgetSlots {
					n++
				}
			}
			return n
		}
		for i := range 120 {
			now = now.Add(time.Duration(rng.Int64N([]int64{1e6, 1e8, 3e9, 2e10}[rng.IntN(4)])))
			if rng.IntN(3) > 0 {
				for range 1 + rng.IntN(20) {
					b.request(now)
					requests = append(requests, now.UnixNano()/slot)
				}
				continue
			}
			own, one := &retries, b.take
			if rng.IntN(2) == 0 {
				own, one = &invited, b.invite
			}
			for range 1 + rng.IntN(8) {
				want := within(*own) < 3 || within(retries)+within(invited) < within(requests)*20/100
				if got := one(now); got != want {
					t.Fatalf("seed %d, step %d: %v; want %v", seed, i, got, want)
				}
				if want {
					*own = append(*own, now.UnixNano()/slot)
				}
			}
		}
	}
}

// TestFault65RetryStormProperty has every engine fail every request for a while, in time of its own, with clients that try
// three times as they are told, and 0.5 s later: the engines get at most 1.2 times what the users sent, beside the floors.
func TestFault65RetryStormProperty(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 66))
		now := time.Unix(1_700_000_000, rng.Int64N(1e9))
		begin := now
		var r RetryBudget
		r.SetLimits(20, 3)
		users, upstream := 0, 0
		type again struct {
			at   time.Time
			left int
		}
		var queue []again
		// one request of a client; left is how often it would ask once more.
		ask := func(left int, first bool) {
			r.Started(now, !first)
			upstream++ // the first attempt
			for range 2 {
				if !r.Retry(now) {
					return // 503 with X-Should-Retry: false
				}
				upstream++
			}
			if left > 0 && r.Invite(now) {
				queue = append(queue, again{now.Add(500 * time.Millisecond), left - 1})
			}
		}
		for range 400 {
			now = now.Add(time.Duration(rng.Int64N(2e7)))
			for len(queue) > 0 && !queue[0].at.After(now) {
				a := queue[0]
				queue = queue[1:]
				ask(a.left, false)
			}
			users++
			ask(2, true)
		}
		windows := int(now.Sub(begin)/retryWindow) + 2
		if limit := users + users/5 + (3+3)*windows; upstream > limit {
			t.Fatalf("seed %d: %d requests of users became %d; want at most %d", seed, users, upstream, limit)
		}
	}
}

// TestBudgetOfQuietModel has one request fail with all its retries, and invite its client: the next one still has its own.
func TestBudgetOfQuietModel(t *testing.T) {
	var r RetryBudget
	r.SetLimits(20, 3)
	now := time.Unix(1_700_000_000, 0)
	r.Started(now, false)
	first, second := r.Retry(now), r.Retry(now)
	if !first || !second || !r.Invite(now) {
		t.Fatal("the first request has no retries")
	}
	r.Started(now, false)
	if !r.Retry(now) {
		t.Error("an invitation has taken a retry of the next request")
	}
	if r.Retry(now) || !r.Invite(now) || !r.Invite(now) || r.Invite(now) {
		t.Error("there are not three retries and three invitations")
	}
}
