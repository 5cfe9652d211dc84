package handshake

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/metadata"
)

// order returns the pairs in the order in which their handshakes began.
func (f *fakeShake) order() []metadata.Pair {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.called)
}

// Of the pairs that are queued the one begins first that most callers wait for, then the heaviest, then the oldest; and
// a caller moves its pair forward.
func TestPairsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{}
		p := newPairs(t, Config{Concurrency: 1}, f)
		defer p.Close()
		pair := func(i int) metadata.Pair { return pairOf(fmt.Sprint("p", i), fmt.Sprint("d", i)) }
		for i, weight := range []int{0, 3, 5, 5, 7, 1, 2, 4} {
			if err := p.Start(pair(i), weight); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Start(pair(5), 6); err != nil { // it has become busy
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		for _, i := range []int{6, 7, 7} {
			waiting.Go(func() { _ = p.Wait(t.Context(), pair(i)) })
		}
		waiting.Wait()
		time.Sleep(time.Minute)
		var got []metadata.Pair
		for _, i := range []int{0, 7, 6, 4, 5, 2, 3, 1} {
			got = append(got, pair(i))
		}
		if order := f.order(); !slices.Equal(order, got) {
			t.Errorf("order %v; want %v", order, got)
		}
	})
}

// Handshakes that nobody waits for leave room: a request's pair begins at once though they all hang, with an engine that
// others hang with too.
func TestPairsBackgroundLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{hangs: true}
		p := newPairs(t, Config{Timeout: time.Hour, Concurrency: 8, PerEngine: 3}, f)
		defer p.Close()
		for i := range 100 {
			if err := p.Start(pairOf(fmt.Sprint("p", i%10), fmt.Sprint("d", i/10)), 100); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		stats(t, p, Stats{Queued: 94, InFlight: 6})
		busiest := map[string]int{}
		for _, pair := range f.order() {
			busiest[pair.Prefill.Engine]++
			busiest[pair.Decode.Engine]++
		}
		for engine, n := range busiest {
			if n > 2 {
				t.Errorf("%d handshakes with %s that nobody waits for; want one place kept", n, engine)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		asked := pairOf(f.order()[0].Prefill.Engine, "d9")
		_ = p.Wait(ctx, asked)
		if order := f.order(); order[6] != asked {
			t.Errorf("%v began; want %v, which a request waits for", order[6:], asked)
		}
	})
}

// A queue that is full of handshakes nobody waits for gives one of them up for a request's.
func TestPairsRequestsDisplaceBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeShake{hangs: true}
		p := newPairs(t, Config{Timeout: time.Hour, Concurrency: 1, Queue: 2}, f)
		defer p.Close()
		for i := range 3 {
			if err := p.Start(pairOf(fmt.Sprint("p", i), "d"), i); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Start(pairOf("p3", "d"), 9); err == nil {
			t.Error("a fourth one was queued")
		}
		go func() { _ = p.Wait(context.Background(), pairOf("p4", "d")) }()
		synctest.Wait()
		stats(t, p, Stats{Waiting: 1, Queued: 2, InFlight: 1})
		if p.jobs[pairOf("p1", "d")] != nil || p.jobs[pairOf("p2", "d")] == nil {
			t.Error("the heavier one was given up")
		}
	})
}

// While a forgotten handshake has not returned, no other one of its pair begins.
func TestFault44PairsNeverTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		running, most := 0, 0
		var mu sync.Mutex
		p, err := New(Config{}, func(context.Context, metadata.Pair) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			<-slow // it does not return soon after its context
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		pair := pairOf("p", "d")
		for range 5 {
			if err := p.Start(pair, 0); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			p.ForgetPair(pair)
		}
		got := make(chan error)
		go func() { got <- p.Wait(context.Background(), pair) }()
		synctest.Wait()
		stats(t, p, Stats{Waiting: 1, Queued: 1, InFlight: 1, Failed: failed(FailedForgotten, 5)})
		close(slow)
		if err := <-got; err != nil || most != 1 || !p.Ready(pair) {
			t.Errorf("%v, %d at once; want success and 1", err, most)
		}
		p.Close()
	})
}

// Every pair of 100 prefill and 100 decode engines shakes hands: what the registry itself costs.
func BenchmarkPairsWarm10000(b *testing.B) {
	for b.Loop() {
		p, err := New(Config{}, func(context.Context, metadata.Pair) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		for i := range 10_000 {
			if err := p.Start(pairOf(fmt.Sprint("p", i%100), fmt.Sprint("d", i/100)), i%7); err != nil {
				b.Fatal(err)
			}
		}
		p.running.Wait()
		for p.Stats().Ready < 10_000 {
			p.running.Wait()
		}
		p.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10_000, "ns/pair")
}

func BenchmarkPairsReady(b *testing.B) {
	p, err := New(Config{}, func(context.Context, metadata.Pair) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for i := range 10_000 {
		p.mu.Lock()
		p.ready.addLocked(pairOf(fmt.Sprint("p", i%100), fmt.Sprint("d", i/100)))
		p.mu.Unlock()
	}
	pair := pairOf("p42", "d77")
	b.ReportAllocs()
	for b.Loop() {
		if !p.Ready(pair) {
			b.Fatal("not ready")
		}
	}
}

// What the set of ready pairs was compared with: both are filled with 10,000 pairs and asked for one.
func BenchmarkReadySets(b *testing.B) {
	var pairs []metadata.Pair
	for i := range 10_000 {
		pairs = append(pairs, pairOf(fmt.Sprint("p", i%100), fmt.Sprint("d", i/100)))
	}
	b.Run("by prefill run", func(b *testing.B) {
		for b.Loop() {
			s := newReadySet()
			for _, pair := range pairs {
				s.addLocked(pair)
			}
		}
	})
	b.Run("sync.Map", func(b *testing.B) {
		for b.Loop() {
			var s sync.Map
			for _, pair := range pairs {
				s.Store(pair, struct{}{})
			}
		}
	})
	b.Run("sync.Map, has", func(b *testing.B) {
		var s sync.Map
		for _, pair := range pairs {
			s.Store(pair, struct{}{})
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := s.Load(pairs[7]); !ok {
				b.Fatal("not there")
			}
		}
	})
}
