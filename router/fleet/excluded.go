package fleet

import (
	"slices"
	"time"

	"pdrouter/router/fleet/health"
)

// Excluded is the set of engines that a request has failed on.
type Excluded []exclusion

// exclusion is one of them.
type exclusion struct {
	e     *Engine
	until time.Time // it has asked for no more requests before; zero if it has not
}

// Has reports whether e is one of them.
func (t Excluded) Has(e *Engine) bool {
	return slices.ContainsFunc(t, func(f exclusion) bool { return f.e == e })
}

// Add notes that e has failed, and that it wants rest for so long.
func (t Excluded) Add(e *Engine, rest time.Duration) Excluded {
	f := exclusion{e: e}
	if rest > 0 {
		f.until = time.Now().Add(rest)
	}
	if i := slices.IndexFunc(t, func(f exclusion) bool { return f.e == e }); i >= 0 {
		t[i] = f
		return t
	}
	return append(t, f)
}

// Rest returns how long the engines want to rest still.
func (t Excluded) Rest(engines ...*Engine) (d time.Duration) {
	for _, f := range t {
		if !f.until.IsZero() && slices.Contains(engines, f.e) {
			d = max(d, time.Until(f.until))
		}
	}
	return d
}

// LongRests returns those that want to rest for longer than a request waits for, and how long it is until the first of them
// may be asked.
func (t Excluded) LongRests() (long Excluded, first time.Duration) {
	for _, f := range t {
		if f.until.IsZero() {
			continue
		}
		if d := time.Until(f.until); d > health.LongestRest {
			if long = append(long, f); first == 0 || d < first {
				first = d
			}
		}
	}
	return long, first
}

// Soonest returns how long it is until the first of those that asked for no more requests may be asked; 0 if none has.
func (t Excluded) Soonest() (d time.Duration) {
	for _, f := range t {
		if rest := time.Until(f.until); !f.until.IsZero() && rest > 0 && (d == 0 || rest < d) {
			d = rest
		}
	}
	return d
}

// Without returns t without those engines.
func (t Excluded) Without(engines []*Engine) Excluded {
	return slices.DeleteFunc(slices.Clone(t), func(f exclusion) bool { return slices.Contains(engines, f.e) })
}
