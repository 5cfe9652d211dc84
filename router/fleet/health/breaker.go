// Package health says whether an engine, or a pair of engines, may be given requests, from what came of those that it was given:
// circuit breakers, pauses that engines ask for, slow start, and the comparison of engines of one role. Everything here is a value
// that takes the time; nothing does I/O or knows an engine. Package leg decides which
// failures count against which engine (leg/fault.go); package fleet holds these values for each.
package health

import "time"

// Breaker is a circuit breaker of an engine or a pair. Closed, it lets all requests through. A number of failures of one kind in a row opens
// it, and for a time it lets none through. Then it is half open: it lets one through as a probe. A success closes it, a failure opens it
// for twice as long.
//
// It is a value without I/O or clock. The zero value is closed.
type Breaker struct {
	failed [signs]int // of each kind in a row, while it is closed
	opened bool
	why    FailureKind // the kind that has opened it
	until  time.Time   // open: when it becomes half open
	opens  int         // how often it was opened, the times that it closed for long not counted in
	closed time.Time   // when it closed the last time
	probe  time.Time   // half open: until when a probe is waited for; zero if none is under way
}

// FailureKind is a kind of failure. A good answer says nothing of streams, which break later.
type FailureKind uint8

const (
	AnswerFailed FailureKind = iota // no answer, or one that is none
	StreamFailed                    // a stream that had begun broke, or stood still
	signs
)

func (s FailureKind) String() string { return [...]string{"answers", "streams"}[s] }

// Circuit is the state of a breaker at a moment.
type Circuit uint8

const (
	Closed Circuit = iota
	Open
	HalfOpen
)

func (c Circuit) String() string { return [...]string{"closed", "open", "half_open"}[c] }

// BreakerRules are what the configuration says of breakers.
type BreakerRules struct {
	Failures int           // of one kind in a row that open it
	Open     time.Duration // for how long the first time
	Longest  time.Duration // that it is ever open
}

// At returns the state.
func (b *Breaker) At(now time.Time) Circuit {
	switch {
	case !b.opened:
		return Closed
	case now.Before(b.until):
		return Open
	}
	return HalfOpen
}

// Wait is how long it stays open; 0 or less if it is not open.
func (b *Breaker) Wait(now time.Time) time.Duration { return b.until.Sub(now) }

// Fail notes a failure, and reports whether it has opened the breaker. chance, in 0..1, shortens the time by up to a
// quarter, so that not all that broke at once are probed at once.
func (b *Breaker) Fail(s FailureKind, now time.Time, rules BreakerRules, chance float64) bool {
	switch b.At(now) {
	case Open: // it was under way before
		return false
	case Closed:
		if b.failed[s]++; b.failed[s] < rules.Failures {
			return false
		}
		if now.Sub(b.closed) > 2*rules.Longest {
			b.opens = 0
		}
	}
	pause := rules.Longest
	if b.opens < 16 {
		pause = min(pause, rules.Open<<b.opens)
	}
	pause -= time.Duration(chance * float64(pause) / 4)
	b.failed, b.opened, b.why, b.until, b.probe = [signs]int{}, true, s, now.Add(pause), time.Time{}
	b.opens++
	return true
}

// OK notes a success, and reports whether it has closed the breaker. Whatever comes while it is open was under way before.
func (b *Breaker) OK(s FailureKind, now time.Time) bool {
	switch b.At(now) {
	case Closed:
		b.failed[s] = 0
	case HalfOpen:
		if s == b.why {
			b.opened, b.closed, b.probe = false, now, time.Time{}
			return true
		}
	}
	return false
}

// OKWhole notes a whole answer, and reports whether it has closed the breaker. Nothing of such an answer can fail later, so it counts as
// much as a stream that has ended well.
func (b *Breaker) OKWhole(now time.Time) bool {
	if b.At(now) == HalfOpen {
		return b.OK(b.why, now)
	}
	return b.OK(AnswerFailed, now)
}

// Lets reports whether one more may be let through.
func (b *Breaker) Lets(now time.Time) bool {
	switch b.At(now) {
	case Open:
		return false
	case HalfOpen:
		return !now.Before(b.probe)
	}
	return true
}

// Take lets one more through, if that may be. Of a half-open breaker that is the probe: no other is let through until it
// has ended, or has been waited for long enough.
func (b *Breaker) Take(now time.Time, rules BreakerRules) bool {
	if !b.Lets(now) {
		return false
	}
	if b.opened {
		b.probe = now.Add(rules.Open)
	}
	return true
}

// Close closes the breaker: a probe of another kind has shown that all is well.
func (b *Breaker) Close(now time.Time) {
	if b.opened {
		b.closed = now
	}
	b.failed, b.opened, b.probe = [signs]int{}, false, time.Time{}
}

// Reopen keeps an open breaker open: such a probe has failed.
func (b *Breaker) Reopen(now time.Time, rules BreakerRules, chance float64) {
	if b.opened && b.At(now) == HalfOpen {
		b.Fail(b.why, now, rules, chance)
	}
}
