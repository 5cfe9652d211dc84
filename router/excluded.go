package router

import (
	"slices"
	"time"

	"pdrouter/router/fleet/health"
)

// tried is the set of engines that a request has failed on.
type tried []failed

// failed is one of them.
type failed struct {
	e     *engine
	until time.Time // it has asked for no more requests before; zero if it has not
}

func (t tried) has(e *engine) bool {
	return slices.ContainsFunc(t, func(f failed) bool { return f.e == e })
}

// add notes that e has failed, and that it wants rest for so long.
func (t tried) add(e *engine, rest time.Duration) tried {
	f := failed{e: e}
	if rest > 0 {
		f.until = time.Now().Add(rest)
	}
	if i := slices.IndexFunc(t, func(f failed) bool { return f.e == e }); i >= 0 {
		t[i] = f
		return t
	}
	return append(t, f)
}

// rest returns how long the engines want to rest still.
func (t tried) rest(engines ...*engine) (d time.Duration) {
	for _, f := range t {
		if !f.until.IsZero() && slices.Contains(engines, f.e) {
			d = max(d, time.Until(f.until))
		}
	}
	return d
}

// resting returns those that want to rest for longer than a request waits for, and how long it is until the first of them
// may be asked.
func (t tried) resting() (long tried, first time.Duration) {
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

// soonest returns how long it is until the first of those that asked for no more requests may be asked; 0 if none has.
func (t tried) soonest() (d time.Duration) {
	for _, f := range t {
		if rest := time.Until(f.until); !f.until.IsZero() && rest > 0 && (d == 0 || rest < d) {
			d = rest
		}
	}
	return d
}

// with returns t and those engines.
func (t tried) with(engines []*engine) tried {
	t = slices.Clone(t)
	for _, e := range engines {
		if !t.has(e) {
			t = append(t, failed{e: e})
		}
	}
	return t
}

// without returns t without those engines.
func (t tried) without(engines []*engine) tried {
	return slices.DeleteFunc(slices.Clone(t), func(f failed) bool { return slices.Contains(engines, f.e) })
}
