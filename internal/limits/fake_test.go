package limits

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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
	skew    time.Duration
	asked   int // reports that came

	each func() (down, forgets bool) // decides for each exchange, if it is set
}

type fakeHash struct {
	at       time.Time
	owed     [buckets]time.Duration
	gateways map[string]fakeGateway
}

type fakeGateway struct {
	ends time.Time
	mine load
	sum  [buckets]time.Duration
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

// step sets its clock.
func (f *fakeExchange) step(by time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.skew += by
}

// count returns how many reports came.
func (f *fakeExchange) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
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
	f.asked += len(reports)
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
	now := time.Now().Add(f.skew)
	h := f.hashes[r.key]
	known := h != nil
	if h == nil {
		h = &fakeHash{at: now, gateways: map[string]fakeGateway{}}
		f.hashes[r.key] = h
	}
	mine, was := h.gateways[r.from]
	var others load
	for name, g := range h.gateways {
		switch {
		case name == r.from:
		case g.ends.Before(now), g.ends.After(now.Add(2 * keep)):
			delete(h.gateways, name)
		default:
			others.inFlight += g.mine.inFlight
			others.reserved += g.mine.reserved
		}
	}
	dt := max(0, now.Sub(h.at))
	h.at = now
	for b := range h.owed {
		h.owed[b] = max(0, h.owed[b]-dt)
		last := r.taken[b]
		if was {
			last = mine.sum[b]
		}
		if known && !r.lost {
			h.owed[b] = max(0, h.owed[b]+r.sum[b]-last)
		} else {
			h.owed[b] = max(h.owed[b], r.seen[b])
		}
	}
	h.gateways[r.from] = fakeGateway{ends: now.Add(keep), mine: r.mine, sum: r.sum}
	r.owed, r.others, r.known = h.owed, others, true
}
