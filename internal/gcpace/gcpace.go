// Package gcpace collects the garbage of a small heap less often than Go does by itself. pdrouter serve and the processes of bench call
// Start once. docs/decisions/gc-pace.md has what it saves.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
)

// spareHeap is how many bytes a small heap may grow by between two garbage collections, and it grows by at least half of that. A gateway
// without streams has a heap of 3 MiB: at Go's own pace it would be collected fifty times a second under load, which takes a twentieth of a
// request's CPU time.
const spareHeap = 16 << 20

// ownPace is Go's: a collection when the heap has doubled.
const ownPace = 100

// Start has the garbage collector leave a small heap alone until it has grown by spareHeap, or nearly. A larger one
// is collected at Go's own pace, so that thousands of streams cost no more memory than before. Where GOGC is set,
// nothing is changed.
func Start() {
	if os.Getenv("GOGC") == "" {
		pace(ownPace)
	}
}

// pace looks at the heap behind each collection that is to come.
func pace(percent int) {
	runtime.AddCleanup(new([64]byte), func(percent int) {
		scanned := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
		gometrics.Read(scanned)
		sum := uint64(0) // what the pace is a part of
		for _, s := range scanned {
			sum += s.Value.Uint64()
		}
		if p := collectAt(sum); p != percent {
			debug.SetGCPercent(p) // stops the world for a moment, so it is not set for every little
			percent = p
		}
		pace(percent)
	}, percent)
}

// collectAt is by how many percent of so many bytes the heap may grow before the next collection: in steps of a factor of two.
func collectAt(scanned uint64) int {
	p := ownPace
	for p < 16*ownPace && scanned*uint64(2*p) <= spareHeap*ownPace {
		p *= 2
	}
	return p
}
