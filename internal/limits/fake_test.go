package limits

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// fakeExchange does in this process, in the bubble's time, what Redis does; conform holds both to the same.
type fakeExchange struct {
	mu      sync.Mutex
	hashes  map[string]*fakeHash
	delay   time.Duration // each way
	down    bool
	forgets bool // it takes reports in and never answers

	each func() (down, forgets bool) // decides for each exchange, if it is set
}

type fakeHash struct {
	at       time.Time
	spent    [buckets]float64
	gateways map[string]fakeGateway
}

type fakeGateway struct {
	ends     time.Time
	inFlight int
	sum      [buckets]int64
}

var errFake = errors.New("fake: down")

func newFakeExchange(delay time.Duration) *fakeExchange {
	return &fakeExchange{hashes: map[string]*fakeHash{}, delay: delay}
}

func (f *fakeExchange) set(down, forgets bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down, f.forgets = down, forgets
}

// wipe has it lose everything, as a Redis that is started anew.
func (f *fakeExchange) wipe() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.hashes)
}

func (f *fakeExchange) swap(ctx context.Context, reports []report) error {
	time.Sleep(f.delay)
	answers, err := f.take(reports)
	time.Sleep(f.delay)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	copy(reports, answers)
	return nil
}

func (f *fakeExchange) take(reports []report) ([]report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.each != nil {
		f.down, f.forgets = f.each()
	}
	if f.down {
		return nil, errFake
	}
	answers := make([]report, len(reports))
	for i, r := range reports {
		f.one(&r)
		answers[i] = r
	}
	if f.forgets {
		return nil, errFake
	}
	return answers, nil
}

func (f *fakeExchange) one(r *report) {
	now := time.Now()
	h := f.hashes[r.key]
	known := h != nil
	if h == nil {
		h = &fakeHash{at: now, gateways: map[string]fakeGateway{}}
		f.hashes[r.key] = h
	}
	mine, was := h.gateways[r.from]
	others := 0
	for name, g := range h.gateways {
		switch {
		case name == r.from:
		case g.ends.Before(now):
			delete(h.gateways, name)
		default:
			others += g.inFlight
		}
	}
	dt := now.Sub(h.at).Seconds()
	h.at = now
	for b := range h.spent {
		h.spent[b] = max(0, h.spent[b]-rate(r.limits.of(b))*dt)
		last := r.taken[b]
		if was {
			last = mine.sum[b]
		}
		if known && !r.lost {
			h.spent[b] = max(0, h.spent[b]+float64(r.sum[b]-last))
		} else {
			h.spent[b] = max(h.spent[b], r.seen[b])
		}
	}
	h.gateways[r.from] = fakeGateway{ends: now.Add(keep), inFlight: r.inFlight, sum: r.sum}
	r.spent, r.others, r.known = h.spent, others, true
}

// conform holds an exchange to what the limiter relies on. sleep lets so much of its time pass, at least.
func conform(t *testing.T, x exchange, sleep func(time.Duration)) {
	slow := Limits{Requests: 60, Tokens: 60} // one is refilled each second: the tests' own time hardly shows
	ask := func(r report) report {
		t.Helper()
		r.limits = slow
		one := []report{r}
		if err := x.swap(t.Context(), one); err != nil || !one[0].known {
			t.Fatalf("swap: %v, known %t", err, one[0].known)
		}
		return one[0]
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if got > want+.001 || got < want-5 { // what was refilled while the test ran
			t.Errorf("%s: got %g; want %g", what, got, want)
		}
	}
	sums := func(r, k int64) [buckets]int64 { return [buckets]int64{r, k} }
	seen := func(r, k float64) [buckets]float64 { return [buckets]float64{r, k} }

	t.Run("sums", func(t *testing.T) {
		a := ask(report{key: "sums", from: "a", sum: sums(20, 200), seen: seen(20, 200), inFlight: 3})
		near("the first's requests", a.spent[requests], 20)
		near("the first's tokens", a.spent[tokens], 200)
		b := ask(report{key: "sums", from: "b", sum: sums(30, 300), seen: seen(30, 300), inFlight: 2})
		near("requests of both", b.spent[requests], 50)
		near("tokens of both", b.spent[tokens], 500)
		if b.others != 3 || a.others != 0 {
			t.Errorf("got %d and %d others; want 0 and 3", a.others, b.others)
		}
		near("told twice", ask(report{key: "sums", from: "b", sum: sums(30, 300), inFlight: 2}).spent[tokens], 500)
		near("given back", ask(report{key: "sums", from: "b", sum: sums(30, 100), taken: sums(30, 300)}).spent[tokens], 300)
		if other := ask(report{key: "another", from: "a"}); other.spent != seen(0, 0) {
			t.Errorf("another tenant has spent %v", other.spent)
		}
	})
	t.Run("an outage", func(t *testing.T) {
		ask(report{key: "outage", from: "a", sum: sums(10, 100), seen: seen(10, 100)})
		got := ask(report{key: "outage", from: "b", sum: sums(1000, 9000), seen: seen(55, 90), lost: true})
		near("requests", got.spent[requests], 55)
		near("tokens", got.spent[tokens], 100)
		near("counted on", ask(report{key: "outage", from: "b", sum: sums(1002, 9000), seen: seen(57, 90)}).spent[requests], 57)
	})
	t.Run("nothing is left of it", func(t *testing.T) {
		near("seen", ask(report{key: "wiped", from: "a", sum: sums(5000, 0), taken: sums(4990, 0), seen: seen(40, 0)}).spent[requests], 40)
		near("not taken", ask(report{key: "wiped", from: "b", sum: sums(4000, 0), taken: sums(3999, 0), seen: seen(40, 0)}).spent[requests], 41)
	})
	t.Run("never below nothing", func(t *testing.T) {
		ask(report{key: "below", from: "a", sum: sums(0, 10), seen: seen(0, 10)})
		near("tokens", ask(report{key: "below", from: "a", sum: sums(0, -500), taken: sums(0, 10)}).spent[tokens], 0)
	})
	t.Run("the dead are forgotten", func(t *testing.T) {
		ask(report{key: "dead", from: "a", inFlight: 7, sum: sums(60, 0), seen: seen(60, 0)})
		if got := ask(report{key: "dead", from: "b"}).others; got != 7 {
			t.Errorf("got %d others; want 7", got)
		}
		sleep(keep + keep/10)
		if got := ask(report{key: "dead", from: "b"}); got.others != 0 || got.spent[requests] > 60-keep.Seconds() || math.IsNaN(got.spent[requests]) {
			t.Errorf("got %d others and %g; want none, and what was refilled", got.others, got.spent[requests])
		}
	})
}
