package health

import (
	"math"
	"sync/atomic"
	"time"
)

// DecayingCounter counts the requests that wanted something, and forgets them: each minute halves the count. It is safe for
// concurrent use, takes no lock and allocates nothing; the zero value is none.
type DecayingCounter struct {
	state atomic.Uint64 // the minute in the upper half, the count in the lower
}

// Add counts one request.
func (d *DecayingCounter) Add(now time.Time) {
	minute := minuteOf(now)
	for {
		old := d.state.Load()
		n := decayed(old, minute)
		if n < math.MaxUint32 {
			n++
		}
		if d.state.CompareAndSwap(old, uint64(minute)<<32|uint64(n)) {
			return
		}
	}
}

// Count returns what is left of all that came.
func (d *DecayingCounter) Count(now time.Time) int {
	return int(decayed(d.state.Load(), minuteOf(now)))
}

func minuteOf(now time.Time) uint32 { return uint32(now.Unix() / 60) }

// decayed returns the count at a minute. A clock that was set back halves nothing.
func decayed(state uint64, minute uint32) uint32 {
	then, n := uint32(state>>32), uint32(state)
	if minute <= then {
		return n
	}
	return n >> min(minute-then, 31)
}
