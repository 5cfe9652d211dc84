package router

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// vitals are what an engine's traffic says of it. They are safe for concurrent use; the zero value is a good engine's.
type vitals struct {
	// special is set as long as something here may keep requests away: nearly never, and then nobody takes mu.
	special atomic.Bool
	counts  [ejections]atomic.Uint64 // how often it was taken out, by reason

	mu      sync.Mutex
	circuit breaker
	rest    time.Time // it has asked for no requests before
	refused int       // rests since it served a request
	slow    time.Time // it is out for being slow until then
	since   time.Time // when its slow start began; zero if it has none
	pace    pace
}

// ejection is why an engine that can be reached gets no requests.
type ejection uint8

const (
	ejectedNot     ejection = iota
	ejectedAnswers          // requests failed in a row
	ejectedStreams          // streams broke or stood still in a row
	ejectedSlow             // it was much slower than its peers
	ejectedBusy             // it has refused requests for being overloaded
	ejections
)

func (e ejection) String() string {
	return [...]string{"", "answers", "streams", "latency", "overload"}[e]
}

// leastShare is the share with which a slow start begins.
const leastShare = 0.1

// longestRest is the longest that an engine's Retry-After is heeded.
const longestRest = 5 * time.Second

// standing is what the vitals say at one moment.
type standing struct {
	out     ejection
	circuit circuit
	share   float64 // in 0..1
}

// stand returns what holds now.
func (v *vitals) stand(now time.Time, slowStart time.Duration) standing {
	if !v.special.Load() {
		return standing{share: 1}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.standLocked(now, slowStart)
}

func (v *vitals) standLocked(now time.Time, slowStart time.Duration) standing {
	s := standing{circuit: v.circuit.at(now), share: 1}
	if !v.since.IsZero() {
		part := 1.0
		if slowStart > 0 {
			part = max(0, float64(now.Sub(v.since))/float64(slowStart))
		}
		if part >= 1 {
			v.since = time.Time{}
		} else {
			s.share = leastShare + (1-leastShare)*part
		}
	}
	switch {
	case !v.circuit.lets(now):
		s.out = ejectedAnswers + ejection(v.circuit.why)
	case now.Before(v.rest):
		s.out = ejectedBusy
	case now.Before(v.slow):
		s.out = ejectedSlow
	}
	if s == (standing{share: 1}) && !now.Before(v.slow) && !now.Before(v.rest) {
		v.special.Store(false)
	}
	return s
}

// take makes this request the probe of a half-open circuit. It reports whether the request may go to the engine, and whether it is the
// probe.
func (v *vitals) take(now time.Time, rules breakerRules) (may, probe bool) {
	if !v.special.Load() {
		return true, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	may = v.circuit.take(now, rules)
	return may, may && v.circuit.opened
}

// good notes a success. It reports whether the engine is taken into use again by it.
func (v *vitals) good(s sign, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused = 0
	if !v.circuit.ok(s, now) {
		return false
	}
	v.since = now
	return true
}

// whole notes an answer that has come whole. It reports whether the engine is taken into use again by it.
func (v *vitals) whole(now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused = 0
	if !v.circuit.whole(now) {
		return false
	}
	v.since = now
	return true
}

// bad notes a failure. It reports whether the engine is out by it, and for how long.
func (v *vitals) bad(s sign, now time.Time, rules breakerRules) (time.Duration, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.circuit.fail(s, now, rules, rand.Float64()) {
		return 0, false
	}
	v.special.Store(true)
	v.counts[ejectedAnswers+ejection(s)].Add(1)
	return v.circuit.until.Sub(now), true
}

// busy notes that the engine refused a request for being overloaded. The engine gets none for as long as it asked, or for least if
// that is more; least doubles with each refusal until the engine serves a request.
func (v *vitals) busy(now time.Time, asked, least time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !now.Before(v.rest) { // else the request was under way before
		v.counts[ejectedBusy].Add(1)
		v.refused = min(v.refused+1, 8)
	}
	pause := longestRest
	if least < longestRest {
		pause = min(max(asked, least<<(v.refused-1)), longestRest)
	}
	if until := now.Add(pause); until.After(v.rest) {
		v.rest = until
	}
	v.special.Store(true)
}

// rests returns for how long the engine has asked for no requests.
func (v *vitals) rests(now time.Time) time.Duration {
	if !v.special.Load() {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return max(0, v.rest.Sub(now))
}

// opens returns how long it is until the engine's circuit is half open: 0 if it is not open.
func (v *vitals) opens(now time.Time) time.Duration {
	if !v.special.Load() {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.circuit.at(now) != circuitOpen {
		return 0
	}
	return v.circuit.until.Sub(now)
}

// begin has the engine start slowly from now, with nothing held against it: it is new, back, or drained no more.
func (v *vitals) begin(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.circuit, v.rest, v.refused, v.slow, v.pace = breaker{}, time.Time{}, 0, time.Time{}, pace{}
	v.since = now
	v.special.Store(true)
}
