package simulate

import (
	"time"

	"pdrouter/bench/load"
)

// Refusal is what a request was told that waited too long.
type Refusal struct {
	Told   time.Duration // Retry-After, before it is rounded
	Really time.Duration // after how long engines would have taken it, if it had waited on and no other request had come

	nth int           // of the trace
	at  time.Duration // when it was refused
}

// right is the part by which Told may differ from Really.
const right = .25

// Right reports whether Told is right within a quarter. Both are at least a second, and at most the longest time that a request waits.
func (x Refusal) Right() bool {
	told, really := min(max(x.Told, time.Second), longestWait), min(max(x.Really, time.Second), longestWait)
	return (told - really).Abs() <= time.Duration(right*float64(really))
}

// mostLookedAt is how many refusals of a replay are looked at, at most: each takes a replay until then.
const mostLookedAt = 8

// lookAtRefusals leaves some of the refusals, evenly, and finds out what they should have been told.
func (r *replay) lookAtRefusals(trace []load.Request) error {
	var some []Refusal
	for i := 0; i < len(r.result.Refusals); i += 1 + len(r.result.Refusals)/mostLookedAt {
		x := r.result.Refusals[i]
		if err := x.look(r.Setup, trace); err != nil {
			return err
		}
		some = append(some, x)
	}
	r.result.Refusals = some
	return nil
}

// look finds out what Really is: the same replay, but the request goes on waiting, and none comes once it should have been refused.
func (x *Refusal) look(s Setup, trace []load.Request) error {
	s.Ended = nil
	r := newReplay(s)
	r.kept = x.nth
	if err := r.arrive(trace, x.at); err != nil {
		return err
	}
	for at, any := r.next(); any && r.wentOn == 0; at, any = r.next() { // an idle model takes any request
		if err := r.advance(at); err != nil {
			return err
		}
	}
	x.Really = r.wentOn - x.at
	return nil
}
