package limits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// gateways returns limiters that share one exchange and run until the test ends.
func gateways(t *testing.T, n int, x exchange) []*Limiter {
	t.Helper()
	all := make([]*Limiter, n)
	for i := range all {
		all[i] = newLimiter(x, quiet())
		run(t, all[i])
		time.Sleep(period / time.Duration(n)) // not in step
	}
	return all
}

func TestFakeExchangeConforms(t *testing.T) {
	x := newFakeExchange(0)
	conform(t, x, func(d time.Duration) { // outside a bubble, as that has no subtests: the past is moved instead
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, h := range x.hashes {
			h.at = h.at.Add(-d)
			for name, g := range h.gateways {
				g.ends = g.ends.Add(-d)
				h.gateways[name] = g
			}
		}
	})
}

// at is one admission.
type at struct {
	when    time.Duration
	gateway int
}

// most is the most that any one gateway admitted within any time w.
func most(all []at, gateways int, w time.Duration) int {
	best := 0
	for g := range gateways {
		var mine []time.Duration
		for _, a := range all {
			if a.gateway == g {
				mine = append(mine, a.when)
			}
		}
		for i, j := 0, 0; j < len(mine); j++ {
			for mine[j]-mine[i] > w {
				i++
			}
			best = max(best, j-i+1)
		}
	}
	return best
}

// TestOvershootIsBounded has several gateways asked for far more than the limit, steadily and in bursts, at one gateway
// after the other and at all of them, and holds what all of them admit, over every span of time, to the bound: a minute's
// worth, and what is refilled, and for each gateway but one what one gateway admits in two exchanges.
func TestOvershootIsBounded(t *testing.T) {
	for _, c := range []struct {
		gateways, perMinute int
		delay               time.Duration // of the exchange, each way
		every               time.Duration // between two requests at one gateway
		burst               int           // requests at once
		idle                bool          // each gateway is asked in turn, for seconds, and then not
	}{
		{gateways: 1, perMinute: 60, every: 5 * time.Millisecond, burst: 1},
		{gateways: 2, perMinute: 60, every: 5 * time.Millisecond, burst: 1},
		{gateways: 2, perMinute: 600, delay: 10 * time.Millisecond, every: 3 * time.Millisecond, burst: 1},
		{gateways: 4, perMinute: 600, delay: 10 * time.Millisecond, every: 10 * time.Millisecond, burst: 1},
		{gateways: 4, perMinute: 600, delay: 50 * time.Millisecond, every: 7 * time.Millisecond, burst: 2},
		{gateways: 3, perMinute: 60, delay: time.Millisecond, every: time.Second, burst: 100},
		{gateways: 8, perMinute: 6000, delay: 5 * time.Millisecond, every: 5 * time.Millisecond, burst: 1},
		{gateways: 4, perMinute: 600, delay: 5 * time.Millisecond, every: 5 * time.Millisecond, burst: 1, idle: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := gateways(t, c.gateways, newFakeExchange(c.delay))
				limits := Limits{Requests: c.perMinute}
				random := rand.New(rand.NewPCG(1, 2))
				next := make([]time.Duration, c.gateways)
				for i := range next {
					next[i] = time.Duration(random.Int64N(int64(c.every) + 1))
				}
				began := time.Now()
				var admitted []at
				const length = 65 * time.Second
				for now := time.Duration(0); now < length; now = time.Since(began) {
					soonest := 0
					for i := range next {
						if next[i] < next[soonest] {
							soonest = i
						}
					}
					if wait := next[soonest] - now; wait > 0 {
						time.Sleep(wait)
					}
					when := next[soonest]
					next[soonest] += c.every/2 + time.Duration(random.Int64N(int64(c.every)))
					if c.idle && int(when/(7*time.Second))%c.gateways != soonest {
						continue
					}
					for range c.burst {
						e, no := all[soonest].Admit(time.Now(), "tenant", limits, 0)
						if no == nil {
							admitted = append(admitted, at{when, soonest})
							e.Done(time.Now(), 0)
						}
					}
				}
				within := 2 * (period + 2*c.delay)
				over := (c.gateways - 1) * most(admitted, c.gateways, within)
				worst := 0
				for i := range admitted {
					for j := i; j < len(admitted); j += 7 {
						span := (admitted[j].when - admitted[i].when).Seconds()
						beyond := j - i + 1 - c.perMinute - int(rate(c.perMinute)*span+1)
						worst = max(worst, beyond)
					}
				}
				t.Logf("%d admitted; at most %d beyond the bucket, of %d that the bound allows", len(admitted), worst, over)
				if worst > over {
					t.Errorf("%d more than the bucket were admitted; the bound is %d", worst, over)
				}
				if want := int(float64(c.perMinute) + rate(c.perMinute)*(length.Seconds()-5)); len(admitted) < want && !c.idle {
					t.Errorf("%d were admitted; want at least %d", len(admitted), want)
				}
			})
		})
	}
}

func TestConcurrencyIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFakeExchange(time.Millisecond)
		all := gateways(t, 2, x)
		dead := newLimiter(x, quiet())
		limits := Limits{Concurrent: 4}
		admit := func(l *Limiter) (Lease, bool) {
			e, no := l.Admit(time.Now(), "tenant", limits, 0)
			return e, no == nil
		}
		var held []Lease
		for range 3 {
			e, ok := admit(all[0])
			if !ok {
				t.Fatal("refused")
			}
			held = append(held, e)
		}
		if _, ok := admit(dead); !ok {
			t.Fatal("refused")
		}
		_ = dead.swapAll(t.Context()) // and it never says anything again
		time.Sleep(2 * period)
		e, ok := admit(all[1]) // the first of a tenant that it does not know
		if !ok {
			t.Fatal("refused")
		}
		e.Done(time.Now(), 0)
		time.Sleep(2 * period)
		if _, ok := admit(all[1]); ok {
			t.Error("a fifth request was admitted")
		}
		time.Sleep(2 * keep) // the living repeat what they hold
		if e, ok = admit(all[1]); !ok {
			t.Error("the dead gateway's request is still counted")
		}
		time.Sleep(2 * period)
		if _, ok := admit(all[1]); ok {
			t.Error("the living gateway's requests are no longer counted")
		}
		held[0].Done(time.Now(), 0)
		time.Sleep(2 * period)
		_, _ = admit(all[1]) // what it knows of an idle tenant is old
		e.Done(time.Now(), 0)
		time.Sleep(2 * period)
		if _, ok := admit(all[1]); !ok {
			t.Error("what came free at one gateway is not free at the other")
		}
	})
}

// use has each gateway asked for a while as fast as it goes, and returns how many each admitted.
func use(all []*Limiter, limits Limits, length time.Duration) []int {
	n := make([]int, len(all))
	for began := time.Now(); time.Since(began) < length; time.Sleep(10 * time.Millisecond) {
		for i, l := range all {
			if e, no := l.Admit(time.Now(), "tenant", limits, 0); no == nil {
				e.Done(time.Now(), 0)
				n[i]++
			}
		}
	}
	return n
}

func TestOutage(t *testing.T) {
	for _, how := range []string{"down", "down and empty", "takes and never answers"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newFakeExchange(time.Millisecond)
				all := gateways(t, 2, x)
				limits := Limits{Requests: 600}
				use(all, limits, time.Minute) // the bucket is empty
				x.set(how != "takes and never answers", how == "takes and never answers")
				if how == "down and empty" {
					x.wipe()
				}
				for i, n := range use(all, limits, 5*time.Minute) {
					if n < 2900 || n > 3010 {
						t.Errorf("alone, gateway %d admitted %d in five minutes; want its whole limit, 3000", i, n)
					}
				}
				for i, l := range all {
					if s := l.Stats(); !s.Behind || s.Failures < 100 || s.Failures > 400 {
						t.Errorf("gateway %d: got %+v; want it behind, with an exchange every two seconds or so", i, s)
					}
				}
				x.set(false, false)
				time.Sleep(longestWait + period)
				sum := 0
				for _, n := range use(all, limits, time.Minute) {
					sum += n
				}
				if sum < 550 || sum > 700 {
					t.Errorf("together again both admitted %d in a minute; want about 600, and nobody locked out", sum)
				}
				if all[0].Stats().Behind {
					t.Error("still behind")
				}
			})
		})
	}
}

// TestLostAnswersCountOnce has single exchanges fail, before or after they were taken in: nothing is counted twice or
// not at all.
func TestLostAnswersCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFakeExchange(time.Millisecond)
		all := gateways(t, 2, x)
		limits := Limits{Requests: 1 << 20, Tokens: 1 << 18} // less is refilled than is charged
		random := rand.New(rand.NewPCG(3, 4))
		dice, n := rand.New(rand.NewPCG(5, 6)), 0
		x.each = func() (down, forgets bool) { // an outage is another thing
			n++
			return n%2 == 0 && dice.IntN(3) == 0, n%2 == 0 && dice.IntN(2) == 0
		}
		charged := 0.0
		began := time.Now()
		for range 300 {
			for _, l := range all {
				e, no := l.Admit(time.Now(), "tenant", limits, 300)
				if no != nil {
					t.Fatal(no)
				}
				time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
				used := random.IntN(600)
				e.Done(time.Now(), used)
				charged += float64(used)
			}
		}
		time.Sleep(2 * time.Second)
		left := max(0, charged-rate(limits.Tokens)*time.Since(began).Seconds())
		for i, l := range all {
			s := &l.shards[0]
			for j := range l.shards {
				if l.shards[j].tenants["tenant"] != nil {
					s = &l.shards[j]
				}
			}
			e, no := l.Admit(time.Now(), "tenant", limits, 0)
			s.mu.Lock()
			spent := s.tenants["tenant"].spent[tokens]
			s.mu.Unlock()
			e.Done(time.Now(), 0)
			if no != nil || spent < left-1000 || spent > left+1000 { // as long as an exchange takes, nothing is refilled
				t.Errorf("gateway %d: %g are spent (%+v); want %g", i, spent, no, left)
			}
		}
	})
}

// TestLastCountsAreTold ends a gateway: another one takes its place and knows what it has admitted.
func TestLastCountsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFakeExchange(time.Millisecond)
		limits := Limits{Requests: 60}
		first := newLimiter(x, quiet())
		for range 60 {
			e, _ := first.Admit(time.Now(), "tenant", limits, 0)
			e.Done(time.Now(), 0)
		}
		stopped, stop := context.WithCancel(t.Context())
		stop()
		if err := first.Run(stopped); err != nil {
			t.Fatal(err)
		}
		second := newLimiter(x, quiet())
		run(t, second)
		if _, no := second.Admit(time.Now(), "tenant", limits, 0); no != nil {
			t.Fatal(no)
		}
		time.Sleep(2 * period)
		if _, no := second.Admit(time.Now(), "tenant", limits, 0); no == nil {
			t.Error("the bucket is full again")
		}
	})
}
