package health

import (
	"testing"
	"time"
)

// TestSlowStart: the share grows from 10 % to 100 % within the slow start.
func TestSlowStart(t *testing.T) {
	var v State
	now := time.Unix(1_000_000, 0)
	v.Reset(now)
	for _, row := range []struct {
		after time.Duration
		want  float64
	}{{0, 0.1}, {10 * time.Second, 0.4}, {20 * time.Second, 0.7}, {30 * time.Second, 1}, {time.Hour, 1}} {
		if got := v.Standing(now.Add(row.after), 30*time.Second).Share; got < row.want-1e-9 || got > row.want+1e-9 {
			t.Errorf("after %v: %v; want %v", row.after, got, row.want)
		}
	}
	if v.special.Load() {
		t.Error("it is still special")
	}
	v.Reset(now)
	if got := v.Standing(now, 0).Share; got != 1 {
		t.Errorf("without slow start: %v", got)
	}
}

// TestFault47RefusalsAndSuccessesOfOneMoment has requests that were under way together refused and served in any order, by an engine that
// rests already: the rest is the shortest again, and nothing panics.
func TestFault47RefusalsAndSuccessesOfOneMoment(t *testing.T) {
	const least = 250 * time.Millisecond
	for _, served := range []func(*State, time.Time){
		func(v *State, now time.Time) { v.Succeeded(AnswerFailed, now) },
		func(v *State, now time.Time) { v.SucceededWhole(now) },
	} {
		var v State
		now := time.Unix(1_000_000, 0)
		v.Refused(now, 0, least)
		served(&v, now)
		now = now.Add(least / 2)
		v.Refused(now, 0, least)
		if got := v.RetryAfter(now); got != least {
			t.Errorf("it rests for %v; want %v", got, least)
		}
	}
}
