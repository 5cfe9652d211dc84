package reclaim

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/background"
)

// TestBarrierAfterPanic has the request of a barrier panic: another is sent, and those that wait are passed.
func TestBarrierAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := background.NewTasks(slog.New(slog.DiscardHandler), errors.New("late"))
		defer tasks.Stop(errors.New("the end"))
		r := &Reclaimer{tasks: tasks}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		passed := r.waitAt(ctx, new(barrier), time.Now(), true, func() bool {
			if n++; n == 1 {
				panic("as told")
			}
			return true
		})
		if !passed || n != 2 {
			t.Errorf("passed %v, with %d requests", passed, n)
		}
	})
}

// TestBarrierTimes compares which ends are passed with the rule itself, over random schedules.
func TestBarrierTimes(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		var f barrierTimes
		base := time.Unix(1000, 0)
		waiting := map[time.Time]bool{}
		for range 30 {
			at := base.Add(time.Duration(rng.IntN(10_000)) * time.Millisecond)
			if rng.IntN(3) > 0 {
				if !waiting[at] {
					f.add(at)
					waiting[at] = true
				}
			} else {
				limit := f.completed(at)
				for ended := range waiting {
					if !ended.After(limit) != (at.Sub(ended) >= BarrierAfter) {
						t.Fatalf("seed %d: ended %v, sent %v: passed up to %v", seed, ended, at, limit)
					}
					if at.Sub(ended) >= BarrierAfter {
						delete(waiting, ended)
					}
				}
			}
			if len(f.ended) != len(waiting) {
				t.Fatalf("seed %d: %d wait; want %d", seed, len(f.ended), len(waiting))
			}
			if due, ok := f.due(); ok != (len(waiting) > 0) {
				t.Fatalf("seed %d: due %v, %v", seed, due, ok)
			} else if ok {
				for ended := range waiting {
					if due.Sub(ended) > BarrierAfter {
						t.Fatalf("seed %d: due %v though one has ended %v", seed, due, ended)
					}
				}
			}
		}
	}
}
