package forecast

import (
	"sync"
	"testing"
)

// TestConcurrentLegs has legs of every kind tell of themselves at once while others ask what the engine has to do: the race detector sees who does so
// without a lock. Each goroutine has one leg after another. All are given at the same time, so that prompts of silent legs are settled by others' calls.
func TestConcurrentLegs(t *testing.T) {
	e := scripted().NewEngine()
	var legs, readers sync.WaitGroup
	over := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for now := 0.0; ; now += .1 {
				select {
				case <-over:
					return
				default:
					e.Work(now)
					e.Given(now)
					e.PromptSeconds(1000, 500)
				}
			}
		})
	}
	for i := range 8 {
		legs.Go(func() {
			for n := range 500 {
				var l Leg
				now := .1 * float64(n)
				begin(e, &l, now, 100+n, 100, i%2 == 0, i < 4)
				e.Counted(&l, n)
				if i%3 == 0 {
					e.Whole(&l, now+.1, 20)
				} else {
					e.FirstToken(&l, now+.1)
					e.Said(&l, now+.11, 20)
				}
				e.End(&l, now+.2)
			}
		})
	}
	legs.Wait()
	close(over)
	readers.Wait()
	if w := e.Work(1e6); len(e.prompts) > 0 || w.Streams != 0 || w.Context != 0 {
		t.Errorf("the engine has %d prompts and %+v after all legs have ended", len(e.prompts), w)
	}
}
