package health

import (
	"slices"
	"time"
)

// latency is how long an engine takes per prompt token, as its traffic shows it.
type latency struct {
	mean  float64   // seconds per token, newer requests counting more
	n     int       // requests it is made of
	last  time.Time // when the newest came
	since time.Time // since when it is slow; zero if it is not
	slow  int       // requests since
}

// OutlierRules are what the configuration says of slow engines.
type OutlierRules struct {
	Times   float64       // the median of the role that an engine's time must exceed
	After   time.Duration // for which it must
	Ejected time.Duration // for which it then gets no requests
	Percent int           // of a role that may be out for this; 0 is off
}

const (
	// leastTokens is how many tokens a prompt counts for that has fewer: what every request costs alike.
	leastTokens = 256
	// leastPaced is how many requests say how fast an engine is.
	leastPaced = 5
	// leastSlow is the time of a short prompt that is never slow, in seconds.
	leastSlow = 0.05
)

// note takes one more request.
func (p *latency) note(took time.Duration, tokens int, now time.Time) {
	v := took.Seconds() / float64(max(tokens, leastTokens))
	p.n++
	p.mean += (v - p.mean) / float64(min(p.n, 10))
	p.last = now
	if !p.since.IsZero() {
		p.slow++
	}
}

// outlier returns the index of the engine of a role to eject for being slow, -1 if there is none, and notes since when each is slow. paces
// has an entry for each engine that can be reached; nil for one that is ejected for being slow already.
func outlier(paces []*latency, now time.Time, rules OutlierRules) int {
	var means []float64
	out := 0
	fresh := func(p *latency) bool { return p.n >= leastPaced && now.Sub(p.last) <= 2*rules.After }
	for _, p := range paces {
		switch {
		case p == nil:
			out++
		case fresh(p):
			means = append(means, p.mean)
		}
	}
	if len(means) < 3 { // of two, either may be the slow one
		return -1
	}
	slices.Sort(means)
	bound := max(rules.Times*means[(len(means)-1)/2], leastSlow/leastTokens)
	worst := -1
	for i, p := range paces {
		switch {
		case p == nil:
		case !fresh(p) || p.mean <= bound:
			p.since, p.slow = time.Time{}, 0
		case p.since.IsZero():
			p.since, p.slow = now, 0
		case now.Sub(p.since) >= rules.After && p.slow >= leastPaced && (worst < 0 || p.mean > paces[worst].mean):
			worst = i
		}
	}
	if out >= max(1, len(paces)*rules.Percent/100) || rules.Percent == 0 {
		return -1
	}
	return worst
}

// ObserveLatency notes how long the engine took for a prompt of so many uncached tokens.
func (v *State) ObserveLatency(took time.Duration, tokens int, now time.Time) {
	v.mu.Lock()
	v.pace.note(took, tokens, now)
	v.mu.Unlock()
}

// EjectSlowest compares the engines of a role and takes out one that is too slow. It returns its index, -1 if there is none, and its
// seconds per prompt token. It holds one lock at a time: requests of before and after a reload may compare the same engines at once.
func EjectSlowest(all []*State, now time.Time, rules OutlierRules) (worst int, perToken float64) {
	seen, paces := make([]latency, len(all)), make([]*latency, len(all))
	for i, v := range all {
		v.mu.Lock()
		if seen[i] = v.pace; !now.Before(v.slow) {
			paces[i] = &seen[i]
		}
		v.mu.Unlock()
	}
	worst = outlier(paces, now, rules)
	for i, v := range all {
		v.mu.Lock()
		if v.pace.since != seen[i].since {
			v.pace.since, v.pace.slow = seen[i].since, 0
		}
		if i == worst {
			perToken, v.pace = v.pace.mean, latency{}
			v.slow, v.since = now.Add(rules.Ejected), now.Add(rules.Ejected) // then it starts slowly
			v.counts[Slow].Add(1)
			v.special.Store(true)
		}
		v.mu.Unlock()
	}
	return worst, perToken
}
