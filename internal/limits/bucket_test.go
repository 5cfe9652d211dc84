package limits

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestRandomSchedules has one gateway asked at random times by keys of one tenant with different limits, for requests of
// all sizes and lengths, which use at most what they expected. The oracle: over every span of time, what the requests used
// that were admitted in it is at most a minute's worth and what is refilled.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 7))
		l := newLimiter(nil, quiet())
		limits := []Limits{{Tokens: 600}, {Tokens: 60_000, Requests: 600}, {Requests: 60}, {Tokens: 1}}
		limits = limits[:1+random.IntN(len(limits))]
		longest := time.Duration(1+random.IntN(200)) * time.Second
		pause := time.Duration(1+random.IntN(4000)) * time.Millisecond
		thrift := random.IntN(4) // how much less is used than was expected
		var held []underWay
		var begun []admitted
		end := func(now time.Duration) {
			for {
				first := -1
				for i := range held {
					if held[i].ends <= now && (first < 0 || held[i].ends < held[first].ends) {
						first = i
					}
				}
				if first < 0 {
					return
				}
				held[first].lease.Done(l.began.Add(held[first].ends), held[first].used)
				held = slices.Delete(held, first, first+1)
			}
		}
		for now := time.Duration(0); now < 5*time.Minute; now += time.Duration(random.Int64N(int64(pause))) {
			end(now)
			mine := limits[random.IntN(len(limits))]
			expected := random.IntN(1 + mine.Tokens>>random.IntN(8))
			used := expected
			for range thrift {
				used = random.IntN(used + 1)
			}
			e, no := l.Admit(l.began.Add(now), "tenant", mine, expected)
			if no != nil {
				if no.After <= 0 || no.After > full || (no.Limit != Requests && no.Limit != Tokens) {
					t.Fatalf("seed %d: %+v", seed, no)
				}
				continue
			}
			begun = append(begun, admitted{when: now, used: [buckets]time.Duration{price(1, mine.Requests), price(used, mine.Tokens)}})
			held = append(held, underWay{e, now + time.Duration(random.Int64N(int64(longest))), used})
		}
		for b := range buckets {
			if over := beyond(begun, b); over > time.Microsecond {
				t.Errorf("seed %d: %s: %v of refill beyond a minute's worth", seed, Limit(b), over)
			}
		}
	}
}

// TestSlowRequestsSaveNothingUp has slow requests reserve a minute's worth each, one a minute, and use hardly anything:
// what the refill has paid is not given back once more.
func TestSlowRequestsSaveNothingUp(t *testing.T) {
	l := newLimiter(nil, quiet())
	limits, now := Limits{Tokens: 600}, l.began
	var held []Lease
	for range 10 {
		e, no := l.Admit(now, "t", limits, 600)
		if no != nil {
			t.Fatal(no)
		}
		held = append(held, e)
		now = now.Add(time.Minute)
	}
	used := 0
	for i := range held { // at one moment
		e, no := l.Admit(now, "t", limits, 590)
		if no != nil {
			break
		}
		e.Done(now, 590)
		used += 590
		held[i].Done(now, 1)
	}
	if used != 590 {
		t.Errorf("%d tokens at once; want 590", used)
	}
}

// TestReservationsAreNotSpent has many requests under way at once expect ten times what they use: in the end only that is
// charged, as the refill pays for all of them together once.
func TestReservationsAreNotSpent(t *testing.T) {
	l := newLimiter(nil, quiet())
	limits, now := Limits{Tokens: 6000}, l.began // 100 a second
	if e, no := l.Admit(now, "t", limits, 0); no != nil {
		t.Fatal(no)
	} else {
		e.Done(now, 6000) // the bucket is empty
	}
	used, held := 0, []Lease{}
	for range 600 { // of a second each
		now = now.Add(time.Second)
		for i := range held {
			held[i].Done(now, 10)
		}
		held = held[:0]
		for {
			e, no := l.Admit(now, "t", limits, 100)
			if no != nil {
				break
			}
			held = append(held, e)
			used += 10
		}
	}
	if used < 57_000 || used > 60_000 {
		t.Errorf("%d tokens were used in ten minutes; want hardly less than 60000", used)
	}
}

// TestOneRequestLocksNobodyOut has a request expect more than a tenant gets in years.
func TestOneRequestLocksNobodyOut(t *testing.T) {
	l := newLimiter(nil, quiet())
	limits, now := Limits{Tokens: 600}, l.began
	huge, no := l.Admit(now, "t", limits, 1<<30)
	if no != nil {
		t.Fatal(no)
	}
	if _, no := l.Admit(now, "t", limits, 600); no == nil || no.After != time.Minute {
		t.Errorf("beside it: got %+v; want to come back in a minute", no)
	}
	now = now.Add(time.Minute)
	e, no := l.Admit(now, "t", limits, 600)
	if no != nil {
		t.Fatalf("after a minute: %+v", no)
	}
	e.Done(now, 0)
	huge.Done(now, 6600) // and that is ten minutes more than the one that was paid
	if _, no := l.Admit(now, "t", limits, 1); no == nil || no.After != time.Minute {
		t.Errorf("in debt: got %+v; want to ask again in a minute at the latest", no)
	}
	now = now.Add(9 * time.Minute) // a minute of debt is left: the bucket is empty
	if _, no := l.Admit(now, "t", limits, 1); no == nil {
		t.Error("the debt was forgotten")
	}
	if _, no := l.Admit(now.Add(time.Second), "t", limits, 10); no != nil {
		t.Errorf("out of debt: %+v", no)
	}
}

// TestKeysOfOneTenant has keys of one tenant with different limits: none gives the other anything, and what has no limit of
// a kind uses nothing of it.
func TestKeysOfOneTenant(t *testing.T) {
	l := newLimiter(nil, quiet())
	now := l.began
	byTokens, byRequests := Limits{Tokens: 600}, Limits{Requests: 6000}
	used := 0
	for range 100 {
		if e, no := l.Admit(now, "t", byTokens, 600); no == nil {
			used += 600
			e.Done(now, 600)
		}
		now = now.Add(time.Millisecond)
		if e, no := l.Admit(now, "t", byRequests, 1); no != nil {
			t.Errorf("a key without a limit of tokens: %+v", no)
		} else {
			e.Done(now, 1<<20)
		}
		now = now.Add(time.Millisecond)
	}
	if used != 600 {
		t.Errorf("the key of 600 tokens a minute used %d in 0.2 s", used)
	}

	free, _ := l.Admit(now, "u", Limits{Requests: 1000}, 1<<20)
	paid, no := l.Admit(now, "u", Limits{Tokens: 600}, 600)
	if no != nil {
		t.Fatal(no)
	}
	paid.Done(now, 600)
	free.Done(now, 10) // it never reserved anything
	if _, no := l.Admit(now, "u", Limits{Tokens: 600}, 600); no == nil {
		t.Error("the bucket is full again")
	}

	half, _ := l.Admit(now, "v", Limits{Tokens: 600}, 300)
	half.Done(now, 300)
	if e, no := l.Admit(now, "v", Limits{Tokens: 60_000}, 30_000); no != nil || e.Tokens.Left != 0 {
		t.Errorf("half of one's minute leaves half of the other's: got %+v, %+v", e, no)
	}
	if _, no := l.Admit(now, "v", Limits{Tokens: 60_000}, 1); no == nil {
		t.Error("more than a minute's worth together")
	}
}
