package health

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// State is what an engine's traffic says of it. It is safe for concurrent use. The zero value is a healthy engine's.
type State struct {
	// special is set while something here may keep requests away. It rarely is, and otherwise mu is not taken.
	special atomic.Bool
	counts  [Ejections]atomic.Uint64 // how often it was taken out, by reason

	mu      sync.Mutex
	circuit Breaker
	rest    time.Time // it has asked for no requests before
	refused int       // rests since it served a request
	slow    time.Time // it is out for being slow until then
	since   time.Time // when its slow start began; zero if it has none
	pace    latency
}

// Ejection is why an engine that can be reached gets no requests.
type Ejection uint8

const (
	InUse      Ejection = iota
	Answers             // requests failed in a row
	Streams             // streams broke or stood still in a row
	Slow                // it was much slower than its peers
	Overloaded          // it has refused requests for being overloaded
	Ejections
)

func (e Ejection) String() string {
	return [...]string{"", "answers", "streams", "latency", "overload"}[e]
}

// leastShare is the share with which a slow start begins.
const leastShare = 0.1

// LongestRest is the longest that an engine's Retry-After is heeded.
const LongestRest = 5 * time.Second

// Standing is what a State says at one moment.
type Standing struct {
	Out     Ejection
	Circuit Circuit
	Share   float64 // in 0..1
}

// Standing returns what holds now.
func (v *State) Standing(now time.Time, slowStart time.Duration) Standing {
	if !v.special.Load() {
		return Standing{Share: 1}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.standLocked(now, slowStart)
}

func (v *State) standLocked(now time.Time, slowStart time.Duration) Standing {
	s := Standing{Circuit: v.circuit.At(now), Share: 1}
	if !v.since.IsZero() {
		part := 1.0
		if slowStart > 0 {
			part = max(0, float64(now.Sub(v.since))/float64(slowStart))
		}
		if part >= 1 {
			v.since = time.Time{}
		} else {
			s.Share = leastShare + (1-leastShare)*part
		}
	}
	switch {
	case !v.circuit.Lets(now):
		s.Out = Answers + Ejection(v.circuit.why)
	case now.Before(v.rest):
		s.Out = Overloaded
	case now.Before(v.slow):
		s.Out = Slow
	}
	if s == (Standing{Share: 1}) && !now.Before(v.slow) && !now.Before(v.rest) {
		v.special.Store(false)
	}
	return s
}

// Take makes this request the probe of a half-open circuit. It reports whether the request may go to the engine, and whether it is the
// probe.
func (v *State) Take(now time.Time, rules BreakerRules) (may, probe bool) {
	if !v.special.Load() {
		return true, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	may = v.circuit.Take(now, rules)
	return may, may && v.circuit.opened
}

// Succeeded notes a success. It reports whether the engine is taken into use again by it.
func (v *State) Succeeded(s FailureKind, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused = 0
	if !v.circuit.OK(s, now) {
		return false
	}
	v.since = now
	return true
}

// SucceededWhole notes an answer that has come whole. It reports whether the engine is taken into use again by it.
func (v *State) SucceededWhole(now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused = 0
	if !v.circuit.OKWhole(now) {
		return false
	}
	v.since = now
	return true
}

// Failed notes a failure. It reports whether the engine is out by it, and for how long.
func (v *State) Failed(s FailureKind, now time.Time, rules BreakerRules) (time.Duration, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.circuit.Fail(s, now, rules, rand.Float64()) {
		return 0, false
	}
	v.special.Store(true)
	v.counts[Answers+Ejection(s)].Add(1)
	return v.circuit.until.Sub(now), true
}

// Refused notes that the engine refused a request for being overloaded. The engine gets none for as long as it asked, or for least if
// that is more; least doubles with each refusal until the engine serves a request.
func (v *State) Refused(now time.Time, asked, least time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !now.Before(v.rest) { // else the request was under way before
		v.counts[Overloaded].Add(1)
		v.refused = min(v.refused+1, 8)
	}
	pause := LongestRest
	if least < LongestRest {
		doubled := max(0, v.refused-1) // it may have served a request since its rest began
		pause = min(max(asked, least<<doubled), LongestRest)
	}
	if until := now.Add(pause); until.After(v.rest) {
		v.rest = until
	}
	v.special.Store(true)
}

// RetryAfter returns for how long the engine has asked for no requests.
func (v *State) RetryAfter(now time.Time) time.Duration {
	if !v.special.Load() {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return max(0, v.rest.Sub(now))
}

// OpenFor returns how long it is until the engine's circuit is half open: 0 if it is not open.
func (v *State) OpenFor(now time.Time) time.Duration {
	if !v.special.Load() {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.circuit.At(now) != Open {
		return 0
	}
	return v.circuit.until.Sub(now)
}

// EjectedFor returns how often the engine was taken out for that reason.
func (v *State) EjectedFor(why Ejection) uint64 { return v.counts[why].Load() }

// Reset begins a slow start and forgets all failures: the engine is new, back, or no longer drained.
func (v *State) Reset(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.circuit, v.rest, v.refused, v.slow, v.pace = Breaker{}, time.Time{}, 0, time.Time{}, latency{}
	v.since = now
	v.special.Store(true)
}
