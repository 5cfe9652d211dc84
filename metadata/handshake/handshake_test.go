package handshake

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/metadata"
)

func pairOf(p, d string) metadata.Pair {
	return metadata.Pair{Prefill: metadata.Incarnation{Engine: p, Generation: 1}, Decode: metadata.Incarnation{Engine: d, Generation: 1}}
}

// fakeShake takes a second and then ends with err.
type fakeShake struct {
	mu     sync.Mutex
	err    error
	calls  int
	now    int // running
	most   int // that ran at once
	hangs  bool
	called []metadata.Pair
}

func (f *fakeShake) shake(ctx context.Context, pair metadata.Pair) error {
	f.mu.Lock()
	f.calls++
	f.now++
	f.most = max(f.most, f.now)
	f.called = append(f.called, pair)
	hangs := f.hangs
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now--
		f.mu.Unlock()
	}()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func newPairs(t *testing.T, cfg Config, f *fakeShake) *Registry {
	t.Helper()
	p, err := New(cfg, f.shake)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stats compares all but how long handshakes took.
func stats(t *testing.T, p *Registry, want Stats) {
	t.Helper()
	got := p.Stats()
	got.Took = Took{}
	if got != want {
		t.Errorf("stats are %+v; want %+v", got, want)
	}
}

func failed(why Failure, n uint64) (f [Failures]uint64) {
	f[why] = n
	return f
}

func TestPairsOneHandshakeForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{}
		p := newPairs(t, Config{}, f)
		defer p.Close()
		pair := pairOf("prefill-0", "decode-0")
		if p.Ready(pair) {
			t.Error("ready before any handshake")
		}
		var waiting sync.WaitGroup
		begin := time.Now()
		for range 100 {
			waiting.Go(func() {
				if err := p.Wait(t.Context(), pair); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		stats(t, p, Stats{Waiting: 100, InFlight: 1})
		waiting.Wait()
		if got := time.Since(begin); got != time.Second {
			t.Errorf("waited %v; want the handshake's second", got)
		}
		if f.calls != 1 || !p.Ready(pair) {
			t.Errorf("%d handshakes, ready: %t; want 1, true", f.calls, p.Ready(pair))
		}
		if err := p.Wait(t.Context(), pair); err != nil || f.calls != 1 {
			t.Errorf("afterwards: %v, %d handshakes; want none more", err, f.calls)
		}
		stats(t, p, Stats{Ready: 1, Done: 1})
	})
}

func TestPairsReleaseInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairs(t, Config{}, &fakeShake{})
		defer p.Close()
		pair := pairOf("prefill-0", "decode-0")
		var parked []*waiter
		for range 20 {
			w := &waiter{done: make(chan error, 1)}
			parked = append(parked, w)
			if err := p.park(pair, w, 0); err != nil {
				t.Fatal(err)
			}
		}
		for i, w := range parked {
			if err := <-w.done; err != nil || w.turn != uint64(i+1) {
				t.Errorf("waiter %d was released as number %d with %v", i+1, w.turn, err)
			}
		}
	})
}

func TestPairsFailureIsToldAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{err: errors.New("no route")}
		p := newPairs(t, Config{}, f)
		defer p.Close()
		pair := pairOf("prefill-0", "decode-0")
		var waiting sync.WaitGroup
		for range 10 {
			waiting.Go(func() {
				if err := p.Wait(t.Context(), pair); !errors.Is(err, f.err) {
					t.Errorf("got %v; want the handshake's error", err)
				}
			})
		}
		waiting.Wait()
		stats(t, p, Stats{Failed: failed(FailedOther, 1)})
		f.err = nil
		if err := p.Wait(t.Context(), pair); err != nil || f.calls != 2 {
			t.Errorf("the next try: %v after %d handshakes; want success after 2", err, f.calls)
		}
		stats(t, p, Stats{Ready: 1, Done: 1, Failed: failed(FailedOther, 1)})
	})
}

func TestPairsWaiterLeavesAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{}
		p := newPairs(t, Config{}, f)
		defer p.Close()
		pair := pairOf("prefill-0", "decode-0")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begin := time.Now()
		if err := p.Wait(ctx, pair); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("got %v after %v; want the deadline after 100ms", err, time.Since(begin))
		}
		stats(t, p, Stats{InFlight: 1})
		if err := p.Wait(t.Context(), pair); err != nil || f.calls != 1 {
			t.Errorf("another waiter: %v, %d handshakes; want the same handshake's success", err, f.calls)
		}
	})
}

func TestPairsHandshakeHasATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairs(t, Config{Timeout: 5 * time.Second}, &fakeShake{hangs: true})
		defer p.Close()
		begin := time.Now()
		if err := p.Wait(t.Context(), pairOf("prefill-0", "decode-0")); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 5*time.Second {
			t.Errorf("got %v after %v; want the handshake's timeout after 5s", err, time.Since(begin))
		}
		stats(t, p, Stats{Failed: failed(FailedTimeout, 1)})
	})
}

// A restarted engine's handshakes end at once, ready ones are void, and others go on.
func TestFault44PairsForgetAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{}
		p := newPairs(t, Config{Concurrency: 1}, f)
		defer p.Close()
		done := pairOf("prefill-0", "decode-1")
		if err := p.Wait(t.Context(), done); err != nil {
			t.Fatal(err)
		}
		flying, queued, other := pairOf("prefill-1", "decode-0"), pairOf("prefill-0", "decode-0"), pairOf("prefill-1", "decode-1")
		got := map[metadata.Pair]error{}
		var mu sync.Mutex
		var waiting sync.WaitGroup
		begin := time.Now()
		for _, pair := range []metadata.Pair{flying, queued, other} {
			waiting.Go(func() {
				err := p.Wait(t.Context(), pair)
				mu.Lock()
				defer mu.Unlock()
				got[pair] = err
			})
			synctest.Wait()
		}
		p.Forget("decode-0")
		p.Forget("prefill-0")
		synctest.Wait()
		mu.Lock()
		if time.Since(begin) != 0 || !errors.Is(got[flying], ErrForgotten) || !errors.Is(got[queued], ErrForgotten) {
			t.Errorf("after %v: %v and %v; want both forgotten at once", time.Since(begin), got[flying], got[queued])
		}
		mu.Unlock()
		waiting.Wait()
		if got[other] != nil || !p.Ready(other) || p.Ready(done) || p.Ready(flying) {
			t.Errorf("other ended with %v; ready: other %t, forgotten ones %t %t", got[other], p.Ready(other), p.Ready(done), p.Ready(flying))
		}
		stats(t, p, Stats{Ready: 1, Done: 2, Failed: failed(FailedForgotten, 2)})
		next := flying
		next.Decode.Generation = 2
		if err := p.Wait(t.Context(), next); err != nil || p.Ready(flying) || !p.Ready(next) {
			t.Errorf("the new generation: %v, ready %t, the old one %t", err, p.Ready(next), p.Ready(flying))
		}
	})
}

// A new run of an engine voids the pairs of its earlier ones and no others.
func TestFault44PairsRetireEarlierRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairs(t, Config{}, &fakeShake{})
		defer p.Close()
		old, other := pairOf("prefill-0", "decode-0"), pairOf("prefill-1", "decode-0")
		next := old
		next.Prefill.Generation = 2
		for _, pair := range []metadata.Pair{old, other} {
			if err := p.Wait(t.Context(), pair); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Start(next, 0); err != nil {
			t.Fatal(err)
		}
		p.Retire(next.Prefill)
		if err := p.Wait(t.Context(), next); err != nil || p.Ready(old) || !p.Ready(other) || !p.Ready(next) {
			t.Errorf("new run: %v; ready: old %t, other %t, new %t", err, p.Ready(old), p.Ready(other), p.Ready(next))
		}
		stats(t, p, Stats{Ready: 2, Done: 3})
	})
}

func TestPairsBoundConcurrencyAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{}
		p := newPairs(t, Config{Concurrency: 3, PerEngine: 3, Queue: 7}, f)
		defer p.Close()
		var waiting sync.WaitGroup
		var busy atomic.Int32
		for i := range 15 {
			waiting.Go(func() {
				if err := p.Wait(t.Context(), pairOf(fmt.Sprintf("p%d", i), "decode-0")); errors.Is(err, ErrBusy) {
					busy.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		stats(t, p, Stats{Waiting: 10, Queued: 7, InFlight: 3, Failed: failed(FailedBusy, 5)})
		waiting.Wait()
		if f.most != 3 || busy.Load() != 5 {
			t.Errorf("%d handshakes at once, %d refused; want 3 and 5", f.most, busy.Load())
		}
		stats(t, p, Stats{Ready: 10, Done: 10, Failed: failed(FailedBusy, 5)})
	})
}

func TestPairsCloseLeavesNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{hangs: true}
		p := newPairs(t, Config{Concurrency: 1}, f)
		var waiting sync.WaitGroup
		for i := range 10 {
			waiting.Go(func() {
				if err := p.Wait(t.Context(), pairOf(fmt.Sprintf("p%d", i%3), "decode-0")); !errors.Is(err, ErrClosed) {
					t.Errorf("got %v; want ErrClosed", err)
				}
			})
		}
		synctest.Wait()
		p.Close()
		if f.now != 0 {
			t.Errorf("%d handshakes run after Close; want 0", f.now)
		}
		waiting.Wait()
		if err := p.Wait(t.Context(), pairOf("p9", "decode-0")); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: got %v; want ErrClosed", err)
		}
		p.Close()
		stats(t, p, Stats{Failed: failed(FailedClosed, 3)})
	})
}

func TestPairsReadyAllocatesNothing(t *testing.T) {
	p := newPairs(t, Config{}, &fakeShake{})
	defer p.Close()
	pair := pairOf("prefill-0", "decode-0")
	p.mu.Lock() // Ready must not need it
	defer p.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() { p.Ready(pair) }); n != 0 {
		t.Errorf("Ready allocates %v times; want 0", n)
	}
}

func TestPairsConfig(t *testing.T) {
	if err := (Config{Timeout: -1, Concurrency: -1, PerEngine: -1, Queue: -1}).Validate(); err == nil || len(err.Error()) < 90 {
		t.Errorf("got %v; want four mistakes", err)
	}
	if _, err := New(Config{}, nil); err == nil {
		t.Error("a registry without handshake was made")
	}
}
