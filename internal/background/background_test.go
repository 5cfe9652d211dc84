package background

import (
	"sync"
	"testing"
	"testing/synctest"
)

// TestPoolRunsAll runs more functions at once than the pool keeps goroutines: all run, some goroutines are used again, and none is
// left after Close. synctest fails if one is.
func TestPoolRunsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(3)
		for range 4 {
			var all sync.WaitGroup
			all.Add(10)
			hold := make(chan struct{})
			for range 10 {
				p.Go(func() { all.Done(); <-hold })
			}
			all.Wait() // each has a goroutine: none waits for another
			close(hold)
			synctest.Wait()
			if n := len(p.idle); n != 3 {
				t.Errorf("%d idle goroutines; want 3", n)
			}
		}
		p.Close()
		synctest.Wait()
		if n := len(p.idle); n != 0 {
			t.Errorf("%d idle goroutines after Close; want 0", n)
		}
		ran := false
		p.Go(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("nothing runs after Close")
		}
		p.Close()
	})
}
