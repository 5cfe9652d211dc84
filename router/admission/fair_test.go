package admission

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// naive is the fair order as its rules say it: lists that are looked through from end to end, and sums that are decayed one by one.
type naive struct {
	age     float64
	grants  int
	running int
	list    []*Waiter      // in the order of arrival
	weights map[flowID]int // of tenants
	sums    map[flowID]naiveSum
	began   map[flowID]uint64 // when what waits began to; of requests without a session by their own number
	turn    uint64
	own     map[*Waiter]uint64
}

type naiveSum struct{ tokens, at float64 }

func newNaive() *naive {
	return &naive{weights: map[flowID]int{}, sums: map[flowID]naiveSum{}, began: map[flowID]uint64{}, own: map[*Waiter]uint64{}}
}

// tenantOf and sessionOf name what a request belongs to. A session that is a request's own has a number beyond those of others.
func tenantOf(w *Waiter) flowID { return flowID{w.request.Priority, w.request.Tenant, 0} }

func (o *naive) sessionOf(w *Waiter) flowID {
	id := tenantOf(w)
	if id.session = w.request.Session; id.session == 0 {
		id.session = 1000 + o.own[w]
	}
	return id
}

func (o *naive) attained(id flowID) float64 {
	s := o.sums[id]
	return s.tokens * math.Exp2(s.at-o.age)
}

func (o *naive) charge(w *Waiter, tokens float64) {
	ids := []flowID{tenantOf(w)}
	if w.request.Session != 0 {
		ids = append(ids, o.sessionOf(w))
	}
	for _, id := range ids {
		o.sums[id] = naiveSum{max(0, o.attained(id)+tokens), o.age}
	}
}

func (o *naive) waiting(has func(*Waiter) bool) (n int) {
	for _, w := range o.list {
		if has(w) {
			n++
		}
	}
	return n
}

func (o *naive) push(w *Waiter) {
	if o.turn++; w.request.Session == 0 {
		o.own[w] = o.turn
	}
	o.weights[tenantOf(w)] = w.request.Weight
	for _, id := range []flowID{tenantOf(w), o.sessionOf(w)} {
		if o.waiting(func(x *Waiter) bool { return tenantOf(x) == id || o.sessionOf(x) == id }) == 0 {
			if o.began[id] = o.turn; o.attained(id) <= trifle*(1+1e-9) {
				delete(o.sums, id)
			}
		}
	}
	o.list = append(o.list, w)
}

// before orders two requests of one priority by what their tenants and sessions have attained.
func (o *naive) before(a, b *Waiter) int {
	ta, tb := tenantOf(a), tenantOf(b)
	if ta != tb {
		return cmp.Or(cmp.Compare(o.attained(ta)/float64(o.weights[ta]), o.attained(tb)/float64(o.weights[tb])), cmp.Compare(o.began[ta], o.began[tb]))
	}
	sa, sb := o.sessionOf(a), o.sessionOf(b)
	return cmp.Or(cmp.Compare(o.attained(sa), o.attained(sb)), cmp.Compare(o.began[sa], o.began[sb]))
}

// next is the request that goes next, by any of the two rules.
func (o *naive) next() *Waiter {
	if len(o.list) == 0 {
		return nil
	}
	o.grants++
	heads := map[int]*Waiter{} // by priority
	for _, w := range o.list {
		h := heads[w.request.Priority]
		if h == nil || o.grants%fairTurns != 0 && o.before(w, h) < 0 {
			heads[w.request.Priority] = w
		}
	}
	var best *Waiter
	key := func(w *Waiter) time.Time {
		return w.request.Arrived.Add(-time.Duration(w.request.Priority) * priorityWorth)
	}
	for _, h := range heads {
		if best == nil || key(h).Before(key(best)) || key(h).Equal(key(best)) && h.request.Priority > best.request.Priority {
			best = h
		}
	}
	o.without(best)
	o.running++
	o.charge(best, float64(best.request.Prompt))
	return best
}

func (o *naive) without(w *Waiter) bool {
	n := len(o.list)
	o.list = slices.DeleteFunc(o.list, func(x *Waiter) bool { return x == w })
	return len(o.list) < n
}

// replaced is the request that leaves the full queue for w.
func (o *naive) replaced(w *Waiter) *Waiter {
	low := slices.Clone(o.list)
	slices.SortStableFunc(low, func(a, b *Waiter) int { return cmp.Compare(a.request.Priority, b.request.Priority) })
	if len(low) == 0 || low[0].request.Priority > w.request.Priority {
		return nil
	}
	p := low[0].request.Priority
	ofTenant := func(x *Waiter) float64 {
		return float64(o.waiting(func(y *Waiter) bool { return tenantOf(x) == tenantOf(y) })) / float64(o.weights[tenantOf(x)])
	}
	ofSession := func(x *Waiter) int {
		return o.waiting(func(y *Waiter) bool { return o.sessionOf(x) == o.sessionOf(y) })
	}
	var out *Waiter
	for _, x := range o.list {
		if x.request.Priority != p {
			continue
		}
		if out == nil || cmp.Or(cmp.Compare(ofTenant(x), ofTenant(out)), cmp.Compare(o.began[tenantOf(x)], o.began[tenantOf(out)]),
			cmp.Compare(ofSession(x), ofSession(out)), cmp.Compare(o.began[o.sessionOf(x)], o.began[o.sessionOf(out)])) >= 0 {
			out = x
		}
	}
	if p == w.request.Priority {
		if tenantOf(w) != tenantOf(out) {
			n := o.waiting(func(y *Waiter) bool { return tenantOf(w) == tenantOf(y) }) + 1
			if float64(n)/float64(w.request.Weight) >= ofTenant(out)*(1-1e-9) {
				return nil
			}
		} else {
			n := 1
			if w.request.Session != 0 {
				n += o.waiting(func(y *Waiter) bool { return o.sessionOf(w) == o.sessionOf(y) })
			}
			if n >= ofSession(out) {
				return nil
			}
		}
	}
	return out
}

// TestFairAgainstNaive has requests of tenants and sessions come, leave, run and end at random, and compares each choice with that of the naive
// order. Weights are powers of two and no two sums are equal, so that rounding decides nothing.
func TestFairAgainstNaive(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		q, o := waitlist{fair: true}, newNaive()
		now := time.Unix(1_700_000_000, 0)
		maxRun, length := 1+rng.IntN(3), 1+rng.IntN(12)
		type run struct {
			w   *Waiter
			age float64
		}
		var all []*Waiter
		var with []run
		check := func(what string, ok bool) {
			t.Helper()
			if !ok {
				t.Fatalf("seed %d: %s: waiting %d and %d", seed, what, q.waiting, len(o.list))
			}
		}
		grant := func() {
			for q.running < maxRun && len(o.list) > 0 {
				got, want := q.next(maxRun), o.next()
				check(fmt.Sprintf("next: got %+v, want %+v", got.request, want.request), got == want)
				with = append(with, run{got, q.age})
			}
			check("none is left out", q.next(maxRun) == nil)
		}
		for range 300 {
			if rng.IntN(50) == 0 {
				q.age += 30 // everything is forgotten
			}
			q.age += rng.Float64() / 4
			o.age = q.age
			now = now.Add(time.Duration(rng.IntN(700)) * time.Millisecond)
			switch rng.IntN(6) {
			case 0, 1, 2:
				tenant := rng.IntN(4)
				w := &Waiter{request: Request{Priority: rng.IntN(2), Arrived: now, Tenant: string('a' + rune(tenant)), Weight: 1 << tenant,
					Session: rng.Uint64N(4), Prompt: 1 + rng.IntN(1e6)}}
				all = append(all, w)
				var want *Waiter
				place := placeWaits
				switch {
				case len(o.list) == 0 && o.running < maxRun:
					place = placeTaken
				case len(o.list) >= length:
					if want = o.replaced(w); want == nil {
						place = placeDenied
					} else {
						o.without(want)
					}
				}
				got, out := q.offer(w, maxRun, length)
				check(fmt.Sprintf("offer of %+v: got %d, want %d; out %v, %v", w.request, got, place, out, want), got == place && out == want)
				switch place {
				case placeWaits:
					o.push(w)
				case placeTaken:
					o.running++
					w.held = q.flowOf(&w.request)
					w.held.pins++
					q.charge(w.held, float64(w.request.Prompt))
					o.weights[tenantOf(w)] = w.request.Weight
					o.charge(w, float64(w.request.Prompt))
					with = append(with, run{w, q.age})
				}
			case 3, 4:
				if len(with) > 0 {
					i := rng.IntN(len(with))
					w := with[i].w
					with = slices.Delete(with, i, i+1)
					w.held.pins--
					tokens := outputWeight * float64(rng.IntN(1e5))
					q.charge(w.held, tokens)
					o.charge(w, tokens)
					q.done()
					o.running--
				}
				grant()
			case 5:
				if len(all) > 0 {
					w := all[rng.IntN(len(all))]
					check("leave", q.leave(w) == o.without(w))
				}
			}
			check("counts", q.running == o.running && q.waiting == len(o.list))
			checkFlows(t, seed, &q)
		}
		for len(o.list) > 0 {
			w := o.list[0]
			o.without(w)
			q.leave(w)
		}
		for _, r := range with {
			r.w.held.pins--
		}
		q.age += 60
		for range 100 {
			q.sweep()
		}
		if len(q.all)+len(q.known)+len(q.levels) != 0 {
			t.Fatalf("seed %d: %d flows and %d priorities are remembered when all has decayed", seed, len(q.all), len(q.levels))
		}
	}
}

// checkFlows checks what must hold of the tree at any time.
func checkFlows(t *testing.T, seed uint64, q *waitlist) {
	t.Helper()
	sum := 0
	for _, l := range q.levels {
		sum += l.root.waiting
		for _, tenant := range l.root.below[byService].list {
			n := 0
			for _, s := range tenant.below[byService].list {
				n += s.waiting
			}
			if n != tenant.waiting || n == 0 {
				t.Fatalf("seed %d: the sessions of tenant %+v have %d requests; want %d, more than 0", seed, tenant.id, n, tenant.waiting)
			}
		}
	}
	if sum != q.waiting || len(q.all) != len(q.known) {
		t.Fatalf("seed %d: priorities have %d requests of %d; %d flows are remembered by number, %d by name", seed, sum, q.waiting, len(q.all), len(q.known))
	}
}
