package fleet

import (
	"runtime"
	"testing"
)

// TestPerEngine: what is kept for an engine is found again, and ends with the engine.
func TestPerEngine(t *testing.T) {
	kept := NewPerEngine[int]()
	a := &Engine{Name: "a"}
	*kept.Of(a) = 1
	func() {
		b := &Engine{Name: "b"}
		*kept.Of(b) = 2
		if *kept.Of(a) != 1 || *kept.Of(b) != 2 {
			t.Errorf("%d and %d are kept; want 1 and 2", *kept.Of(a), *kept.Of(b))
		}
	}()
	if n := testing.AllocsPerRun(100, func() { _ = kept.Of(a) }); n != 0 {
		t.Errorf("%v allocations for an engine that is known", n)
	}
	left := 2
	for try := 0; left > 1 && try < 1000; try++ {
		runtime.GC() // which has cleanups run on a goroutine of their own
		runtime.Gosched()
		left = 0
		kept.byEngine.Range(func(any, any) bool { left++; return true })
	}
	if left != 1 {
		t.Errorf("something is kept for %d engines; want 1", left)
	}
	runtime.KeepAlive(a)
}
