package gcpace

import (
	"math"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
	"testing"
)

func TestCollectAt(t *testing.T) {
	for _, c := range []struct {
		scanned uint64
		want    int
	}{
		{0, 1600}, {1 << 20, 1600}, {1<<20 + 1, 800}, {3 << 20, 400}, {4 << 20, 400}, {5 << 20, 200}, {8 << 20, 200}, {8<<20 + 1, 100}, {1 << 30, 100}, {math.MaxInt64 / 200, 100},
	} {
		if got := collectAt(c.scanned); got != c.want {
			t.Errorf("of %d bytes: a collection at %d %%, want %d", c.scanned, got, c.want)
		}
	}
}

// The pace follows the heap: up, and down again.
func TestPaceFollowsHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(ownPace)
	defer debug.SetGCPercent(before)
	Start()
	reached := func(what string, is func(percent uint64) bool) {
		t.Helper()
		now := []gometrics.Sample{{Name: "/gc/gogc:percent"}}
		for range 1000 {
			runtime.GC() // returns with cleanups queued
			runtime.Gosched()
			if gometrics.Read(now); is(now[0].Value.Uint64()) {
				return
			}
		}
		t.Fatalf("%s: collections at %d %%", what, now[0].Value.Uint64())
	}
	reached("a small heap", func(p uint64) bool { return p > ownPace })
	large := make([]byte, 2*spareHeap)
	reached("a large heap", func(p uint64) bool { return p == ownPace })
	runtime.KeepAlive(large)
}
