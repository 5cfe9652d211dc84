package kvplane

import "time"

// Seen says how long what an agent has taken in may have waited for that: messages, ends of writes, losses. Nobody
// knows when a thing came, so each counts with the longest that it can have waited: since the transport was last
// asked, or since it rang for an owner that was asleep.
type Seen struct {
	Count   uint64    `json:"count"`
	Sum     float64   `json:"sum_s"`   // seconds
	Max     float64   `json:"max_s"`   // seconds
	Buckets [7]uint64 `json:"buckets"` // each thing in one: at most 10 µs, 30 µs, 100 µs, 1 ms, 10 ms, 100 ms, and more
}

// SeenBounds returns the upper bounds of all buckets of a Seen but the last.
func SeenBounds() [6]time.Duration {
	return [...]time.Duration{
		10 * time.Microsecond, 30 * time.Microsecond, 100 * time.Microsecond,
		time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
	}
}

// add counts n things that were taken in together.
func (s *Seen) add(n int, waited time.Duration) {
	at := 0
	for _, bound := range SeenBounds() {
		if waited <= bound {
			break
		}
		at++
	}
	s.Buckets[at] += uint64(n)
	s.Count += uint64(n)
	s.Sum += float64(n) * waited.Seconds()
	s.Max = max(s.Max, waited.Seconds())
}
