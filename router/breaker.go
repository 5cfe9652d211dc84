package router

import "time"

// breaker says whether an engine, or a pair, is to be given requests, from how those ended that it was given. Closed, it
// lets all through. So many failures of one kind in a row open it, and for a time it lets none through; then it is half
// open: one is let through as a probe, and what comes of that closes it, or opens it for twice as long.
//
// It is a value without I/O or clock. The zero value is closed.
type breaker struct {
	failed [signs]int // of each kind in a row, while it is closed
	opened bool
	why    sign      // the kind that has opened it
	until  time.Time // open: when it becomes half open
	opens  int       // how often it was opened, the times that it closed for long not counted in
	closed time.Time // when it closed the last time
	probe  time.Time // half open: until when a probe is waited for; zero if none is under way
}

// sign is a kind of failure. A good answer says nothing of streams, which break later.
type sign uint8

const (
	signAnswer sign = iota // no answer, or one that is none
	signStream             // a stream that had begun broke, or stood still
	signs
)

func (s sign) String() string { return [...]string{"answers", "streams"}[s] }

// circuit is the state of a breaker at a moment.
type circuit uint8

const (
	circuitClosed circuit = iota
	circuitOpen
	circuitHalfOpen
)

func (c circuit) String() string { return [...]string{"closed", "open", "half_open"}[c] }

// breakerRules are what the configuration says of breakers.
type breakerRules struct {
	failures int           // of one kind in a row that open it
	open     time.Duration // for how long the first time
	longest  time.Duration // that it is ever open
}

// at returns the state.
func (b *breaker) at(now time.Time) circuit {
	switch {
	case !b.opened:
		return circuitClosed
	case now.Before(b.until):
		return circuitOpen
	}
	return circuitHalfOpen
}

// fail notes a failure, and reports whether it has opened the breaker. chance, in 0..1, shortens the time by up to a
// quarter, so that not all that broke at once are probed at once.
func (b *breaker) fail(s sign, now time.Time, rules breakerRules, chance float64) bool {
	switch b.at(now) {
	case circuitOpen: // it was under way before
		return false
	case circuitClosed:
		if b.failed[s]++; b.failed[s] < rules.failures {
			return false
		}
		if now.Sub(b.closed) > 2*rules.longest {
			b.opens = 0
		}
	}
	pause := rules.longest
	if b.opens < 16 {
		pause = min(pause, rules.open<<b.opens)
	}
	pause -= time.Duration(chance * float64(pause) / 4)
	b.failed, b.opened, b.why, b.until, b.probe = [signs]int{}, true, s, now.Add(pause), time.Time{}
	b.opens++
	return true
}

// ok notes a success, and reports whether it has closed the breaker. Whatever comes while it is open was under way before.
func (b *breaker) ok(s sign, now time.Time) bool {
	switch b.at(now) {
	case circuitClosed:
		b.failed[s] = 0
	case circuitHalfOpen:
		if s == b.why {
			b.opened, b.closed, b.probe = false, now, time.Time{}
			return true
		}
	}
	return false
}

// whole notes a success of which nothing can break later, and reports whether it has closed the breaker: it is as good as a
// stream that has ended well.
func (b *breaker) whole(now time.Time) bool {
	if b.at(now) == circuitHalfOpen {
		return b.ok(b.why, now)
	}
	return b.ok(signAnswer, now)
}

// lets reports whether one more may be let through.
func (b *breaker) lets(now time.Time) bool {
	switch b.at(now) {
	case circuitOpen:
		return false
	case circuitHalfOpen:
		return !now.Before(b.probe)
	}
	return true
}

// take lets one more through, if that may be. Of a half-open breaker that is the probe: no other is let through until it
// has ended, or has been waited for long enough.
func (b *breaker) take(now time.Time, rules breakerRules) bool {
	if !b.lets(now) {
		return false
	}
	if b.opened {
		b.probe = now.Add(rules.open)
	}
	return true
}

// shut closes the breaker: a probe of another kind has shown that all is well.
func (b *breaker) shut(now time.Time) {
	if b.opened {
		b.closed = now
	}
	b.failed, b.opened, b.probe = [signs]int{}, false, time.Time{}
}

// again keeps an open breaker open: such a probe has failed.
func (b *breaker) again(now time.Time, rules breakerRules, chance float64) {
	if b.opened && b.at(now) == circuitHalfOpen {
		b.fail(b.why, now, rules, chance)
	}
}
