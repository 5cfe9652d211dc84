package admission

import (
	"strconv"
	"testing"
	"time"
)

// TestFairStarvesNobody has one request of a session that has attained a lot wait, while at each place new tenants and new sessions come. It has
// its place by the bound that fairTurns states, whatever the number of requests before it.
func TestFairStarvesNobody(t *testing.T) {
	for _, before := range []int{0, 1, 5, 40} {
		q, now := waitlist{fair: true}, time.Unix(1_700_000_000, 0)
		q.take(1)
		old := &Waiter{request: Request{Arrived: now.Add(time.Second), Tenant: "busy", Session: 1}}
		f := q.flowOf(&old.request)
		f.pins++
		q.charge(f, 1e9)
		for i := range before {
			q.offer(&Waiter{request: Request{Arrived: now, Tenant: "busy", Session: uint64(2 + i)}}, 1, 1e6)
		}
		q.offer(old, 1, 1e6)
		grants := 0
		for i := 0; old.at != nil; i++ {
			if now = now.Add(2 * time.Second); grants > fairTurns*(before+1) {
				t.Fatalf("with %d requests before it, the request waits after %d places; want at most %d", before, grants, fairTurns*(before+1))
			}
			q.offer(&Waiter{request: Request{Arrived: now, Tenant: "new" + strconv.Itoa(i)}}, 1, 1e6)
			q.offer(&Waiter{request: Request{Arrived: now, Tenant: "busy", Session: uint64(1000 + i)}}, 1, 1e6)
			q.done()
			if q.next(1) != nil {
				grants++
			}
		}
		if want := fairTurns * (before + 1); before > 0 && grants < want-fairTurns {
			t.Errorf("with %d requests before it, the request had its place after %d places; want about %d, so that the test shows the bound", before, grants, want)
		}
	}
}

// saturate has tenants with weights serve themselves from one place for some half-lives, a request of 1,000 tokens each 1/steps of a half-life. Those who want
// something always have two requests that wait. It returns who had how many of the places.
func saturate(q *waitlist, steps int, halfLives float64, weights map[string]int) map[string]int {
	got := map[string]int{}
	for range int(halfLives * float64(steps)) {
		for _, name := range []string{"a", "b", "c"} {
			for weights[name] > 0 && q.known[flowID{tenant: name}].held() < 2 {
				q.push(&Waiter{request: Request{Tenant: name, Weight: weights[name], Prompt: 1000}})
			}
		}
		q.age += 1 / float64(steps)
		w := q.next(q.running + 1)
		w.held.pins--
		q.done()
		got[w.request.Tenant]++
	}
	for q.waiting > 0 {
		q.leave(q.levels[0].line.first)
	}
	return got
}

// held is how many requests of the tenant wait.
func (f *flow) held() int {
	if f == nil {
		return 0
	}
	return f.waiting
}

// TestFairCredit has one tenant use everything for long, and another one come. The credit of the newcomer is bounded by what the first one
// has attained, which is at most 1.44 half-lives of the model's service: within two half-lives both get the same, and the first one has 1 of fairTurns
// places at any time. It does not matter how long the newcomer was away.
func TestFairCredit(t *testing.T) {
	const steps = 1000
	for _, away := range []float64{0, 10, 1000} {
		q := waitlist{fair: true}
		saturate(&q, steps, 1, map[string]int{"b": 1})
		q.age += away
		saturate(&q, steps, 10, map[string]int{"a": 1})
		both := map[string]int{"a": 1, "b": 1}
		first := saturate(&q, steps, 1, both)
		if n := first["a"]; n < steps/fairTurns || n > steps/fairTurns+20 && away > 0 {
			t.Errorf("away %v: the busy tenant had %d of %d places at first; want 1 of %d", away, n, steps, fairTurns)
		}
		saturate(&q, steps, 1, both)
		if n := saturate(&q, steps, 1, both)["a"]; n < 490 || n > 510 {
			t.Errorf("away %v: after two half-lives the busy tenant had %d of %d places; want half", away, n, steps)
		}
	}
}

// TestFairWeights: in the long run tenants are served in proportion to their weights, up to a share of the places that go by arrival.
func TestFairWeights(t *testing.T) {
	q := waitlist{fair: true}
	weights := map[string]int{"a": 1, "b": 2, "c": 5}
	saturate(&q, 1000, 5, weights)
	got := saturate(&q, 1000, 5, weights)
	for name, w := range weights {
		if want := 5000 * w / 8; got[name] < want*95/100 || got[name] > want*105/100 {
			t.Errorf("tenant %s of weight %d had %d places; want about %d: %v", name, w, got[name], want, got)
		}
	}
}

// TestFlowsAreBounded has more sessions come than are remembered, and forgets them when they have decayed.
func TestFlowsAreBounded(t *testing.T) {
	q := waitlist{fair: true}
	ask := func(tenant string, session uint64) {
		q.running = 0
		q.take(1)
		q.charge(q.flowOf(&Request{Tenant: tenant, Session: session}), 1000)
		if len(q.all) > mostFlows+1 || len(q.known) != len(q.all) {
			t.Fatalf("%d flows are remembered by number, %d by name; want at most %d", len(q.all), len(q.known), mostFlows)
		}
	}
	for i := range uint64(mostFlows + 1000) {
		ask("a", 1+i)
		ask("b"+strconv.Itoa(int(i)), 0)
	}
	if len(q.all) < mostFlows {
		t.Errorf("%d flows are remembered; want %d", len(q.all), mostFlows)
	}
	q.age += 60
	for range mostFlows { // two are looked at each time
		q.done()
		q.running++
	}
	if n := len(q.all); n > 1 { // the tenant of the last sessions
		t.Errorf("%d flows are remembered after 60 half-lives; want none", n)
	}
	q.sweep()
	if len(q.all)+len(q.levels) != 0 {
		t.Errorf("%d flows, %d priorities; want none", len(q.all), len(q.levels))
	}
}

type always int

func (n always) Places(int, int) int { return int(n) }

// TestAllocationsOfPlace: a place that is free costs no allocation, whether or not service is counted.
func TestAllocationsOfPlace(t *testing.T) {
	for _, counted := range []bool{false, true} {
		var q Queue
		q.SetLimits(always(2), 10)
		q.SetOrder(true, time.Minute)
		now := time.Unix(1_700_000_000, 0)
		if counted {
			q.counts.Store(now.Add(time.Hour).UnixNano())
		}
		r := Request{Tenant: "a", Session: 7, Prompt: 1000}
		if n := testing.AllocsPerRun(100, func() {
			now = now.Add(time.Millisecond)
			s, ok := q.TryAcquire(r, now)
			if !ok || (s.flow != nil) != counted {
				t.Fatal(ok, s)
			}
			s.Release(Used{Computed: 1000, Output: 100}, now)
		}); n != 0 {
			t.Errorf("counted %t: %v allocations; want none", counted, n)
		}
		if f := q.list.known[flowID{0, "a", 7}]; counted != (f != nil) || counted && (f.attained(q.list.age) < 100*1200 || f.attained(q.list.age) > 101*1200+1) {
			t.Errorf("counted %t: flow %+v; want 101 requests of 1,200 tokens", counted, f)
		}
	}
}

// BenchmarkPlace is what the queue costs a request that finds a free place: without waiting requests around it, and where service is counted.
func BenchmarkPlace(b *testing.B) {
	for _, counted := range []bool{false, true} {
		b.Run(map[bool]string{false: "free", true: "counted"}[counted], func(b *testing.B) {
			var q Queue
			q.SetLimits(always(2), 10)
			q.SetOrder(true, time.Minute)
			now := time.Unix(1_700_000_000, 0)
			if counted {
				q.counts.Store(now.Add(1000 * time.Hour).UnixNano())
			}
			n := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				n++
				s, _ := q.TryAcquire(Request{Tenant: "a", Session: n % 1000, Prompt: 1000}, now)
				s.Release(Used{Computed: 1000, Output: 100}, now)
			}
		})
	}
}
