package limits

import (
	"context"
	"math/rand/v2"
	"strconv"
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
	conform(t, x, x.step)
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
		_, _ = dead.swapAll(t.Context()) // and it never says anything again
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

// TestQuietIsNoProof has a gateway count alone, and then nothing to tell: it does not take that for an exchange that works.
func TestQuietIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFakeExchange(time.Millisecond)
		l := gateways(t, 1, x)[0]
		x.set(true, false)
		use([]*Limiter{l}, Limits{Requests: 600}, time.Second)
		for range 600 { // long after everything that was told has been forgotten
			time.Sleep(period)
			if !l.Stats().Behind {
				t.Fatal("a gateway with nothing to tell believes that its counts are shared")
			}
		}
	})
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
		left := charged - float64(limits.Tokens)*time.Since(began).Minutes()
		for i, l := range all {
			s := &l.shards[0]
			for j := range l.shards {
				if l.shards[j].tenants["tenant"] != nil {
					s = &l.shards[j]
				}
			}
			e, no := l.Admit(time.Now(), "tenant", limits, 0)
			s.mu.Lock()
			spent := s.tenants["tenant"].all[tokens].owed.Minutes() * float64(limits.Tokens)
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

// TestRefusedGatewayAsksAgain has a gateway that knows of another's reservation refuse: it hears that it has ended, and asks
// no more than once each period.
func TestRefusedGatewayAsksAgain(t *testing.T) {
	for _, expected := range []int{600, 1 << 30} {
		t.Run(strconv.Itoa(expected), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newFakeExchange(time.Millisecond)
				all := gateways(t, 2, x)
				limits := Limits{Tokens: 600}
				first, no := all[0].Admit(time.Now(), "t", limits, expected)
				if no != nil {
					t.Fatal(no)
				}
				refused := func() bool {
					e, no := all[1].Admit(time.Now(), "t", limits, 100)
					e.Done(time.Now(), 0)
					return no != nil
				}
				time.Sleep(2 * period)
				_ = refused() // it is not known there yet
				time.Sleep(2 * period)
				before := x.count()
				for range 100 {
					if !refused() {
						t.Fatal("what the other gateway has reserved is not known")
					}
					time.Sleep(period / 100)
				}
				if n := x.count() - before; n > 3 {
					t.Errorf("%d exchanges for 100 refusals within one period", n)
				}
				first.Done(time.Now(), 10)
				for range 4 { // two exchanges
					_ = refused()
					time.Sleep(period / 2)
				}
				if refused() {
					t.Error("what was given back is not known two exchanges later")
				}
			})
		})
	}
}

// TestFreedConcurrencyIsKnown is the same of requests at once, and has the gateway that refuses forget nothing meanwhile.
func TestFreedConcurrencyIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := gateways(t, 2, newFakeExchange(time.Millisecond))
		limits := Limits{Requests: 60_000, Concurrent: 4}
		var held []Lease
		for range 4 {
			e, _ := all[0].Admit(time.Now(), "t", limits, 0)
			held = append(held, e)
		}
		e, no := all[1].Admit(time.Now(), "t", limits, 0)
		if no != nil {
			t.Fatal(no)
		}
		time.Sleep(2 * period)
		e.Done(time.Now(), 0)
		refused := func() bool {
			e, no := all[1].Admit(time.Now(), "t", limits, 0)
			e.Done(time.Now(), 0)
			return no != nil
		}
		for range 100 {
			time.Sleep(keep / 10)
			if !refused() {
				t.Fatal("four that are under way were forgotten")
			}
		}
		for i := range held {
			held[i].Done(time.Now(), 0)
		}
		for range 4 { // two exchanges
			_ = refused()
			time.Sleep(period / 2)
		}
		if refused() {
			t.Error("what came free is not known two exchanges later")
		}
	})
}

// TestReservationsEndWithTheirGateway has one die with a minute's worth reserved.
func TestReservationsEndWithTheirGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFakeExchange(time.Millisecond)
		all := gateways(t, 1, x)
		dead := newLimiter(x, quiet())
		limits := Limits{Tokens: 60_000}
		if _, no := dead.Admit(time.Now(), "t", limits, 1<<30); no != nil {
			t.Fatal(no)
		}
		_, _ = dead.swapAll(t.Context())
		e, _ := all[0].Admit(time.Now(), "t", limits, 1)
		e.Done(time.Now(), 1)
		time.Sleep(2 * period)
		if _, no := all[0].Admit(time.Now(), "t", limits, 60_000); no == nil {
			t.Fatal("what the other one reserved is not known")
		}
		time.Sleep(keep)
		_, _ = all[0].Admit(time.Now(), "t", limits, 60_000) // and it asks
		time.Sleep(2 * period)
		if _, no := all[0].Admit(time.Now(), "t", limits, 60_000); no != nil {
			t.Errorf("%v after its death: %+v", keep, no)
		}
	})
}

// TestFault69Limits sets the exchange's clock by an hour while two gateways use a tenant's limit up: nobody is charged
// twice, and at most a minute's worth is had in addition.
func TestFault69Limits(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newFakeExchange(time.Millisecond)
				all := gateways(t, 2, x)
				limits := Limits{Requests: 600}
				sum := func(n []int) int { return n[0] + n[1] }
				_ = use(all, limits, time.Minute) // the bucket is empty
				x.step(by)
				if n := sum(use(all, limits, time.Minute)); n < 560 || n > 640+600 || by < 0 && n > 640 {
					t.Errorf("in the minute after the step %d were admitted; want 600, and a minute's worth more if it went forward", n)
				}
				if n := sum(use(all, limits, time.Minute)); n < 560 || n > 640 {
					t.Errorf("in the next minute %d were admitted; want 600", n)
				}
			})
		})
	}
}

// TestNobodyWaitsForTheExchange has an exchange hang: requests come and go, without any time passing.
func TestNobodyWaitsForTheExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFakeExchange(time.Hour)
		l := gateways(t, 1, x)[0]
		limits := Limits{Requests: 60, Tokens: 6000, Concurrent: 2}
		e, _ := l.Admit(time.Now(), "t", limits, 1)
		e.Done(time.Now(), 1)
		time.Sleep(2 * period) // the exchange is under way
		began := time.Now()
		for i := range 59 {
			e, no := l.Admit(time.Now(), "t", limits, 100)
			if no != nil {
				t.Fatalf("request %d: %+v", i, no)
			}
			e.Done(time.Now(), 100)
		}
		if _, no := l.Admit(time.Now(), "t", limits, 1); no == nil {
			t.Error("no limit holds")
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("requests waited for %v", d)
		}
	})
}

// TestGatewaysShareTheRefill has each of two hold half a minute's worth for a slow request: the refill pays for both once,
// not once at each.
func TestGatewaysShareTheRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := gateways(t, 2, newFakeExchange(time.Millisecond))
		limits := Limits{Tokens: 600}
		for _, l := range all {
			if _, no := l.Admit(time.Now(), "t", limits, 300); no != nil {
				t.Fatal(no)
			}
		}
		time.Sleep(30 * time.Second)
		for i, l := range all {
			_, no := l.Admit(time.Now(), "t", limits, 600)
			if no == nil || no.Tokens.Left < 270 || no.Tokens.Left > 330 {
				t.Errorf("gateway %d, half a minute later: got %+v; want about 300 left", i, no)
			}
		}
	})
}
