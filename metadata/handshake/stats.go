package handshake

import (
	"context"
	"errors"
	"time"

	"pdrouter/metadata"
)

// Failure is why a handshake, or a wait for one, came to nothing.
type Failure uint8

// Why handshakes fail.
const (
	FailedOther       Failure = iota // none of the others
	FailedTimeout                    // its time was over
	FailedUnreachable                // an engine took no connection, or broke it
	FailedRefused                    // an engine answered with an error
	FailedUnpairable                 // what the engines published does not fit
	FailedForgotten                  // an engine was started anew or removed meanwhile
	FailedClosed                     // the registry was closed
	FailedBusy                       // a caller of Wait found too many handshakes queued
	Failures                         // how many there are
)

// String returns the failure's word in metrics.
func (f Failure) String() string {
	if f >= Failures {
		return "unknown"
	}
	return [Failures]string{"other", "timeout", "unreachable", "refused", "unpairable", "restarted", "closed", "busy"}[f]
}

// failureOf classifies a handshake's error. What the registry did to it comes before what came of that.
func failureOf(err error) Failure {
	var why *metadata.Unpairable
	switch {
	case errors.Is(err, ErrForgotten):
		return FailedForgotten
	case errors.Is(err, ErrClosed):
		return FailedClosed
	case errors.Is(err, context.DeadlineExceeded):
		return FailedTimeout
	case errors.As(err, &why):
		return FailedUnpairable
	case errors.Is(err, ErrUnreachable):
		return FailedUnreachable
	case errors.Is(err, ErrRefused):
		return FailedRefused
	}
	return FailedOther
}

// Stats counts what a registry does and did.
type Stats struct {
	Ready    int // pairs that are usable now
	Waiting  int // callers of Wait that are parked now
	Queued   int // handshakes that wait for their turn now
	InFlight int // handshakes running now

	Done   uint64           // handshakes that succeeded
	Failed [Failures]uint64 // those that did not, by why; those that never began are among them
	Took   Took             // of all handshakes that began and have returned
}

// Took is how long handshakes took, as a histogram.
type Took struct {
	Count uint64
	Sum   time.Duration
	Up    [11]uint64 // Up[i] of them took at most TookBounds()[i]
}

// TookBounds returns the bounds of Took.Up, growing.
func TookBounds() [11]time.Duration {
	const ms = time.Millisecond
	return [...]time.Duration{5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, 1000 * ms, 2500 * ms, 10_000 * ms, 30_000 * ms}
}

// note counts one handshake.
func (t *Took) note(d time.Duration) {
	t.Count++
	t.Sum += d
	for i, bound := range TookBounds() {
		if d <= bound {
			t.Up[i]++
		}
	}
}
