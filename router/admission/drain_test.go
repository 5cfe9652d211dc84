package admission

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pdrouter/router/reason"
)

// modelled is a server with a queue in front of it, in virtual time: requests come at random, each keeps its place for a random time. One seed
// gives the same requests.
type modelled struct {
	fair    bool
	places  int
	length  int           // of the queue
	mean    time.Duration // that a request keeps its place; the time itself is log-normal, with a standard deviation as large as the mean
	rate    float64       // requests per second that come
	lasts   time.Duration
	slower  bool // from the middle on requests keep their places for twice as long
	tenants int
}

// refused is one request that the queue refused.
type refused struct {
	nth   int // of all requests
	at    time.Duration
	drain time.Duration
}

// ends are the ends of requests, the next one first.
type ends []end

type end struct {
	at   time.Duration
	slot Slot
}

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any          { x := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return x }

// run serves the requests of a seed. The request with the number forced is let into the queue although it is full; run ends when that one has its
// place, and returns when it had. Without one (-1) it serves all, and returns those that were refused.
func (m modelled) run(seed uint64, forced int) (all []refused, admitted time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 2))
	var q Queue
	q.SetLimits(always(m.places), m.length)
	q.SetOrder(m.fair, time.Minute)
	var under ends
	type waits struct {
		w    *Waiter
		nth  int
		took time.Duration
	}
	var waiting []waits
	wall := func(at time.Duration) time.Time { return time.Unix(1_700_000_000, 0).Add(at) }
	for nth, at := 0, time.Duration(0); at < m.lasts; nth++ {
		at += time.Duration(rng.ExpFloat64() / m.rate * float64(time.Second))
		const sigma = 0.83 // sqrt(ln 2)
		took := time.Duration(float64(m.mean) * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2))
		if m.slower && at > m.lasts/2 {
			took *= 2
		}
		r := Request{Tenant: string('a' + rune(rng.IntN(m.tenants))), Prompt: int(took / time.Millisecond)}
		for len(under) > 0 && under[0].at <= at {
			e := heap.Pop(&under).(end)
			e.slot.Release(Used{Computed: int(e.slot.prompt)}, wall(e.at))
			for i := 0; i < len(waiting); i++ {
				select {
				case got := <-waiting[i].w.Done():
					if got.Why == reason.None {
						heap.Push(&under, end{e.at + waiting[i].took, got.Slot})
					}
					if waiting[i].nth == forced {
						if got.Why != reason.None {
							return nil, 0
						}
						return nil, e.at
					}
					waiting = append(waiting[:i], waiting[i+1:]...)
					i--
				default:
				}
			}
		}
		r.Arrived = wall(at)
		if nth == forced {
			q.SetLimits(always(m.places), 1<<20)
		}
		if s, ok := q.TryAcquire(r, wall(at)); ok {
			heap.Push(&under, end{at + took, s})
		} else if got, w := q.Enqueue(r, wall(at)); w != nil {
			waiting = append(waiting, waits{w, nth, took})
		} else {
			all = append(all, refused{nth, at, got.Drain})
		}
		q.SetLimits(always(m.places), m.length)
	}
	return all, 0
}

// TestRetryAfterIsHonest compares what refused requests are told with when they would have had a place, had they been let into the queue: at 1.5 times
// the load that the server can take.
func TestRetryAfterIsHonest(t *testing.T) {
	base := modelled{places: 16, length: 96, mean: 2 * time.Second, rate: 12, lasts: 5 * time.Minute, tenants: 1}
	with := func(change func(*modelled)) modelled { m := base; change(&m); return m }
	for _, row := range []struct {
		name string
		modelled
		each int // one of so many refusals is looked at
		want int // percent of them
	}{
		{"fifo", base, 40, 80},
		{"fair, one tenant", with(func(m *modelled) { m.fair = true }), 40, 80},
		{"fair, three tenants", with(func(m *modelled) { m.fair, m.tenants = true, 3 }), 4, 80},
		{"fifo, slower in the middle", with(func(m *modelled) { m.slower, m.lasts = true, 10*time.Minute }), 80, 80},
	} {
		t.Run(row.name, func(t *testing.T) {
			within, asked, first := 0, 0, time.Duration(0)
			for seed := range uint64(3) {
				all, _ := row.run(seed, -1)
				if len(all) < 500 {
					t.Fatalf("seed %d: %d were refused; want at least 500", seed, len(all))
				}
				first = max(first, all[0].at)
				for i := 0; i < len(all); i += row.each {
					r := all[i]
					_, at := row.run(seed, r.nth)
					if at == 0 {
						continue // the trace ended, or another request took its place in the queue
					}
					told, really := RetryAfter(r.drain, time.Hour), at-r.at
					if asked++; math.Abs(float64(told-really)) <= .25*float64(really) {
						within++
					}
				}
			}
			share := 100 * within / max(asked, 1)
			t.Logf("seeds 0 to 2: %d %% of %d refusals were told a time within 25 %% of the real one; the first refusal at %v", share, asked, first)
			if asked < 60 || share < row.want {
				t.Errorf("%d %% of %d refusals were told a time within 25 %%; want %d %% of at least 60", share, asked, row.want)
			}
		})
	}
}

// TestRetryAfterBounds has the bounds and what is told where nothing is known.
func TestRetryAfterBounds(t *testing.T) {
	for _, row := range []struct{ drain, wait, want time.Duration }{
		{0, time.Hour, time.Second},
		{time.Millisecond, time.Hour, time.Second},
		{time.Second, time.Hour, time.Second},
		{time.Second + 1, time.Hour, 2 * time.Second},
		{time.Hour, time.Hour, time.Minute},
		{time.Hour, 10 * time.Second, 10 * time.Second},
		{time.Hour, 100 * time.Millisecond, time.Second},
	} {
		if got := RetryAfter(row.drain, row.wait); got != row.want {
			t.Errorf("RetryAfter(%v, %v) = %v; want %v", row.drain, row.wait, got, row.want)
		}
	}
	var d drain
	if got := d.of(5, 1); got != 0 {
		t.Errorf("nothing has ended: got %v; want 0", got)
	}
	if got := d.of(5, 0); got != longestRetry {
		t.Errorf("without a place: got %v; want %v", got, longestRetry)
	}
	d.pass(400*time.Millisecond, 2)
	d.done()
	d.done()
	if got := d.of(6, 3); got != 800*time.Millisecond {
		t.Errorf("two requests kept a place for 400 ms each, 6 are asked for of 3: got %v; want 800ms", got)
	}
}

// TestRetryAfterOfRareEnds has requests that end so rarely, or not any more, that less than one counts: the time is still known.
func TestRetryAfterOfRareEnds(t *testing.T) {
	seconds := func(d *drain, n, running int) {
		for range n {
			d.pass(time.Second, running)
		}
	}
	t.Run("slow requests", func(t *testing.T) {
		var d drain
		for range 20 { // four places, each request keeps its own for four minutes
			seconds(&d, 60, 4)
			d.done()
		}
		for age := range 60 {
			if got := d.of(1, 4); got < 50*time.Second {
				t.Fatalf("%d s after the last end: got %v; want about a minute", age, got)
			}
			seconds(&d, 1, 4)
		}
	})
	t.Run("engines stall", func(t *testing.T) {
		var d drain
		for range 60 {
			seconds(&d, 1, 4)
			d.done()
		}
		seconds(&d, 600, 4)
		if got := d.of(5, 4); got != longestRetry {
			t.Errorf("no request has ended for ten minutes: got %v; want %v", got, longestRetry)
		}
	})
	t.Run("after a pause", func(t *testing.T) {
		var d drain
		for range 60 {
			seconds(&d, 1, 4)
			d.done()
		}
		seconds(&d, 24*3600, 0)
		if got := d.of(4, 4); got < 3*time.Second || got > 5*time.Second {
			t.Errorf("a request took 4 s a day ago: got %v; want about 4s", got)
		}
	})
}
