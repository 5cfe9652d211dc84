package limits

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// storm is how several gateways are asked, for far more than the limits, and what came of it.
type storm struct {
	gateways int
	limits   Limits
	delay    time.Duration // of the exchange, each way
	every    time.Duration // between two requests at one gateway
	burst    int           // requests at once
	expected int           // tokens of a request at most; it uses from nothing to what it expected
	lasts    time.Duration // a request at most; 0: it ends at once
	idle     bool          // each gateway is asked in turn, for seconds, and then not
}

// admitted is one admission.
type admitted struct {
	when          time.Duration
	gateway       int
	charged, used [buckets]time.Duration
}

// underWay is a request that ends at a time of its own.
type underWay struct {
	lease Lease
	ends  time.Duration
	used  int
}

// run asks for so long, and returns all admissions and the most requests that were under way at once.
func (c storm) run(all []*Limiter, length time.Duration) (log []admitted, most int) {
	random := rand.New(rand.NewPCG(1, 2))
	next := make([]time.Duration, c.gateways)
	for i := range next {
		next[i] = time.Duration(random.Int64N(int64(c.every) + 1))
	}
	began := time.Now()
	var held []underWay
	for {
		soonest := 0
		for i := range next {
			if next[i] < next[soonest] {
				soonest = i
			}
		}
		ends := -1
		for i := range held {
			if held[i].ends <= next[soonest] && (ends < 0 || held[i].ends < held[ends].ends) {
				ends = i
			}
		}
		if ends >= 0 {
			time.Sleep(max(0, held[ends].ends-time.Since(began)))
			held[ends].lease.Done(time.Now(), held[ends].used)
			held = append(held[:ends], held[ends+1:]...)
			continue
		}
		when := next[soonest]
		if when > length {
			return log, most
		}
		time.Sleep(max(0, when-time.Since(began)))
		next[soonest] += c.every/2 + time.Duration(random.Int64N(int64(c.every)))
		if c.idle && int(when/(7*time.Second))%c.gateways != soonest {
			continue
		}
		for range c.burst {
			expected := random.IntN(c.expected + 1)
			used := random.IntN(expected + 1)
			e, no := all[soonest].Admit(time.Now(), "tenant", c.limits, expected)
			if no != nil {
				continue
			}
			log = append(log, admitted{when, soonest,
				[buckets]time.Duration{price(1, c.limits.Requests), price(expected, c.limits.Tokens)},
				[buckets]time.Duration{price(1, c.limits.Requests), price(used, c.limits.Tokens)}})
			if c.lasts == 0 {
				e.Done(time.Now(), used)
				continue
			}
			held = append(held, underWay{e, when + time.Duration(random.Int64N(int64(c.lasts))), used})
			most = max(most, len(held))
		}
	}
}

// within is how old what a gateway knows of the others may be when it matters: two exchanges.
func (c storm) within() time.Duration { return 2 * (max(period, 2*c.delay) + 2*c.delay) }

// ofOne returns the most that any gateway admitted within so much time: as charged, and how many.
func (c storm) ofOne(log []admitted, w time.Duration) (charged [buckets]time.Duration, n int) {
	for g := range c.gateways {
		var mine []admitted
		for _, a := range log {
			if a.gateway == g {
				mine = append(mine, a)
			}
		}
		var sum [buckets]time.Duration
		for i, j := 0, 0; j < len(mine); j++ {
			for b := range sum {
				sum[b] += mine[j].charged[b]
			}
			for ; mine[j].when-mine[i].when > w; i++ {
				for b := range sum {
					sum[b] -= mine[i].charged[b]
				}
			}
			for b := range sum {
				charged[b] = max(charged[b], sum[b])
			}
			n = max(n, j-i+1)
		}
	}
	return charged, n
}

// beyond returns how much more than a minute's worth, and what is refilled, was used over any span of time.
func beyond(log []admitted, b int) (worst time.Duration) {
	var before, least time.Duration // all that was used, and the least of that less the time that had passed by then
	for i, a := range log {
		if i == 0 || before-a.when < least {
			least = before - a.when
		}
		before += a.used[b]
		worst = max(worst, before-a.when-least-full)
	}
	return worst
}

// TestOvershootIsBounded has several gateways asked for far more than the limits, steadily and in bursts, at one gateway
// after the other and at all of them, and holds what all of them admit, over every span of time, to the bound: a minute's
// worth, and what is refilled, and for each gateway but one what one gateway admits within two exchanges. A gateway alone
// is held to the limits themselves, however slow the exchange.
func TestOvershootIsBounded(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []storm{
		{gateways: 1, limits: Limits{Requests: 60}, every: 5 * ms, burst: 1},
		{gateways: 1, limits: Limits{Requests: 600}, delay: 40 * ms, every: 3 * ms, burst: 20}, // much is charged while an answer is on its way
		{gateways: 1, limits: Limits{Tokens: 6000}, delay: 40 * ms, every: 3 * ms, burst: 20, expected: 50, lasts: time.Second},
		{gateways: 2, limits: Limits{Requests: 60}, every: 5 * ms, burst: 1},
		{gateways: 2, limits: Limits{Requests: 600}, delay: 10 * ms, every: 3 * ms, burst: 1},
		{gateways: 4, limits: Limits{Requests: 600}, delay: 10 * ms, every: 10 * ms, burst: 1},
		{gateways: 4, limits: Limits{Requests: 600}, delay: 50 * ms, every: 7 * ms, burst: 2},
		{gateways: 3, limits: Limits{Requests: 60}, delay: ms, every: time.Second, burst: 100},
		{gateways: 8, limits: Limits{Requests: 6000}, delay: 5 * ms, every: 5 * ms, burst: 1},
		{gateways: 4, limits: Limits{Requests: 600}, delay: 5 * ms, every: 5 * ms, burst: 1, idle: true},
		{gateways: 2, limits: Limits{Tokens: 6000}, delay: 5 * ms, every: 5 * ms, burst: 1, expected: 50},
		{gateways: 4, limits: Limits{Tokens: 6000}, delay: 10 * ms, every: 20 * ms, burst: 1, expected: 100, lasts: 500 * ms},
		{gateways: 4, limits: Limits{Tokens: 6000, Requests: 300}, delay: 10 * ms, every: 10 * ms, burst: 3, expected: 100, lasts: 3 * time.Second, idle: true},
		{gateways: 2, limits: Limits{Concurrent: 20}, delay: 5 * ms, every: 10 * ms, burst: 1, lasts: 10 * time.Second},
		{gateways: 4, limits: Limits{Concurrent: 40}, delay: 10 * ms, every: 20 * ms, burst: 2, lasts: 10 * time.Second},
		{gateways: 4, limits: Limits{Concurrent: 40}, delay: 5 * ms, every: 50 * ms, burst: 1, lasts: 15 * time.Second, idle: true},
		{gateways: 3, limits: Limits{Concurrent: 10, Tokens: 60_000}, delay: ms, every: 10 * ms, burst: 1, expected: 200, lasts: 200 * ms},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const length = 65 * time.Second
				all := gateways(t, c.gateways, newFakeExchange(c.delay))
				log, most := c.run(all, length)
				charged, n := c.ofOne(log, c.within())
				others := c.gateways - 1
				t.Logf("%d admitted, %d at once (%d of one within two exchanges)", len(log), most, n)
				for b := range charged {
					worst, bound := beyond(log, b), time.Duration(others)*charged[b]
					t.Logf("%s: %v of refill beyond the bucket; the bound is %v", Limit(b), worst, bound)
					if worst > bound+time.Microsecond {
						t.Errorf("%s: %v of refill were used beyond the bucket; the bound is %v", Limit(b), worst, bound)
					}
				}
				if c.limits.Concurrent > 0 && most > c.limits.Concurrent+others*n {
					t.Errorf("%d were under way at once; the bound is %d", most, c.limits.Concurrent+others*n)
				}
				var used [buckets]time.Duration
				for _, a := range log {
					for b := range used {
						used[b] += a.used[b]
					}
				}
				if want := full + length - 10*time.Second; !c.idle && c.limits.Concurrent == 0 && max(used[requests], used[tokens]) < want*9/10 {
					t.Errorf("%v of refill were used; want about %v", used, want)
				}
				if c.limits.Concurrent > 0 && most < c.limits.Concurrent {
					t.Errorf("%d were under way at once; want %d", most, c.limits.Concurrent)
				}
			})
		})
	}
}
