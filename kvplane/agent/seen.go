package agent

import "time"

// Seen says how long what an agent has taken in had waited for that: messages, ends of writes, losses. Where the
// transport stamps what comes (tcp: when its goroutine had read it), that is the time until the owner took it in, the
// owner's waking up included. Where it must be polled (NIXL), the time of arrival is unknown: it counts since the
// doorbell's datagram was read, if there was one, else since the transport was last asked, which is the longest that it
// can have waited. An owner that has slept and finds something unannounced knows nothing, and says so.
type Seen struct {
	Unknown uint64    `json:"unknown"` // things of whose waiting nothing is known; they are not in Count
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

// unknowable is the time between two looks beyond which the earlier one says nothing of when a thing came.
const unknowable = 50 * time.Millisecond

// countWaiting counts what the last poll has taken in; without a stamp it was not here before since.
func (o *owner) countWaiting(since time.Duration) {
	waited := o.now() - since
	for i := range o.incoming {
		switch at := o.incoming[i].At; {
		case !at.IsZero():
			o.stats.Seen.add(1, max(time.Since(at), 0))
		case waited > unknowable:
			o.stats.Seen.Unknown++
		default:
			o.stats.Seen.add(1, waited)
		}
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
