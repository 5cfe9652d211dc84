package admission

import (
	"math"
	"time"
)

const (
	// drainHalfLife is how fast older completions lose weight.
	drainHalfLife = 30 * time.Second
	// longestRetry bounds Retry-After, as internal/limits does: clients sleep for as long as it says, though the queue may empty sooner. OpenAI's
	// Python SDK (3.52) gives up if it is more than 120 s.
	longestRetry = time.Minute
	// unknownRetry is Retry-After as long as no request has ended.
	unknownRetry = time.Second
)

// drain estimates when a queue will have given out a number of places. It learns how long a request keeps its place: the time that places
// were taken, by the requests that ended. Requests that are still under way count with the time so far. It reads no clock. The zero value
// knows nothing.
type drain struct {
	taken   float64 // seconds that places were taken, all places added up; of the last few minutes, or since about one request ended
	ended   float64 // requests that ended in the same time; 0 until the first has, then about 1 at least
	decayed time.Duration
}

// pass notes that so many places were taken for that long.
func (d *drain) pass(dt time.Duration, running int) {
	d.taken += dt.Seconds() * float64(running)
	if d.decayed += dt; d.decayed >= time.Second { // not each time: it would cost each request two powers
		left := math.Exp2(-float64(d.decayed) / float64(drainHalfLife))
		left = max(left, 1/max(d.ended, 1)) // a request counts at least: if they end rarely, or not any more, what is known is all there is
		d.taken, d.ended, d.decayed = d.taken*left, d.ended*left, 0
	}
}

// done notes that a request ended.
func (d *drain) done() { d.ended++ }

// of predicts how long it takes until a model with so many places has given out n more of them; 0 if nothing is known. Both bounds of
// RetryAfter apply to what it returns.
func (d *drain) of(n, places int) time.Duration {
	switch {
	case places <= 0:
		return longestRetry
	case d.ended == 0:
		return 0
	}
	each := d.taken / d.ended // seconds
	return time.Duration(min(float64(n)*each/float64(places), longestRetry.Seconds()) * float64(time.Second))
}

// RetryAfter is what a refused request is told: the time that the queue takes to drain, in whole seconds, rounded up. It is at least a second
// and at most a minute; and at most as long as a request may wait, as by then each request that waits now has its place or has given up. If the
// time is not known (0) it is a second.
func RetryAfter(drain, longestWait time.Duration) time.Duration {
	if drain <= 0 {
		return unknownRetry
	}
	drain = min(drain, longestWait, longestRetry)
	return max(time.Second, (drain + time.Second - 1).Truncate(time.Second))
}
