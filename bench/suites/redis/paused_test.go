package redis

import (
	"testing"
	"time"
)

// TestRedisIsPaused stops a Redis of the test's own and lets it go on.
func TestRedisIsPaused(t *testing.T) {
	server, err := startRedis(t.Context())
	if err != nil {
		t.Skip(err)
	}
	defer server.Stop()
	db, err := server.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := server.pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- db.Ping(t.Context()).Err() }()
	select {
	case err := <-answered:
		if err == nil {
			t.Error("a Redis that is stopped answers")
		}
	case <-time.After(50 * time.Millisecond):
	}
	if err := server.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestPooled has times whose quotient is known, and one part of them that only some draws have.
func TestPooled(t *testing.T) {
	parts := func(slow int) (of [][]time.Duration) {
		for i := range 20 {
			var times []time.Duration
			for k := range 50 {
				times = append(times, time.Duration(100+k)*2*time.Microsecond)
			}
			if i < slow {
				for k := range times {
					times[k] *= 2
				}
			}
			of = append(of, times)
		}
		return of
	}
	if low, ratio, high := pooled(parts(0), parts(0), 40); low != 1 || ratio != 1 || high != 1 {
		t.Errorf("of the same times: %v, %v, %v", low, ratio, high)
	}
	low, ratio, high := pooled(parts(20), parts(0), 40)
	if min(low, ratio, high) < 1.9999 || max(low, ratio, high) > 2.0001 { // whole nanoseconds
		t.Errorf("of times twice as long: %v, %v, %v", low, ratio, high)
	}
	low, ratio, high = pooled(parts(1), parts(0), 40)
	if low != 1 || !(ratio > low) || !(high > ratio) {
		t.Errorf("one part of twenty is slow: %v, %v, %v; want an interval that begins with 1", low, ratio, high)
	}
	if got := tenths(make([]time.Duration, 95)); len(got) != 10 || len(got[9]) != 5 {
		t.Errorf("%d parts", len(got))
	}
}
