package router

import (
	"slices"
	"time"
)

// pace is how long an engine takes per prompt token, as its traffic shows it.
type pace struct {
	mean  float64   // seconds per token, newer requests counting more
	n     int       // requests it is made of
	last  time.Time // when the newest came
	since time.Time // since when it is slow; zero if it is not
	slow  int       // requests since
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
func (p *pace) note(took time.Duration, tokens int, now time.Time) {
	v := took.Seconds() / float64(max(tokens, leastTokens))
	p.n++
	p.mean += (v - p.mean) / float64(min(p.n, 10))
	p.last = now
	if !p.since.IsZero() {
		p.slow++
	}
}

// outlier returns the index of the engine of a role that is to be taken out for being slow, -1 if there is none, and notes
// since when each is. paces has one for each engine that can be reached, nil of those that are out for it already.
func outlier(paces []*pace, now time.Time, rules Outliers) int {
	var means []float64
	out := 0
	fresh := func(p *pace) bool { return p.n >= leastPaced && now.Sub(p.last) <= 2*rules.After }
	for _, p := range paces {
		switch {
		case p == nil:
			out++
		case fresh(p):
			means = append(means, p.mean)
		}
	}
	if len(means) < 3 { // of two nobody knows which is the slow one
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
	if out >= max(1, len(paces)**rules.Percent/100) || *rules.Percent == 0 {
		return -1
	}
	return worst
}

// sawDone learns how long the engines of a request took. It is called once per request, at its end.
func (x *exchange) sawDone(now time.Time) {
	a, s := x.cur, &x.sum
	if a == nil || s.Attempts == 0 || s.Phases.Plan == 0 {
		return
	}
	tokens := x.b.promptTokens()
	if s.PromptTokens > 0 {
		tokens = s.PromptTokens
	}
	switch {
	case a.split && a.answered() && s.Phases.Prefill > s.Phases.Pair:
		x.r.timed(x.m, prefillRole, a.prefill.engine, s.Phases.Prefill-s.Phases.Pair, tokens-s.CachedTokens, now)
		if x.b.stream && s.Phases.FirstToken > s.Phases.Prefill {
			x.r.timed(x.m, decodeRole, a.decode.engine, s.Phases.FirstToken-s.Phases.Prefill, tokens, now)
		}
	case x.m.conn.traits().mode == alone && x.b.stream && s.Phases.FirstToken > 0:
		x.r.timed(x.m, decodeRole, a.decode.engine, s.Phases.FirstToken-s.Phases.Plan, tokens-s.CachedTokens, now)
	}
}

// timed notes how long an engine took, and now and then compares all of its role.
func (r *Router) timed(m *model, role role, e *engine, took time.Duration, tokens int, now time.Time) {
	e.vitals.mu.Lock()
	e.vitals.pace.note(took, tokens, now)
	e.vitals.mu.Unlock()
	was := m.judged[role].Load()
	if at := now.UnixNano(); at-was < int64(time.Second) || !m.judged[role].CompareAndSwap(was, at) {
		return
	}
	engines := m.decode
	if role == prefillRole {
		engines = m.prefill
	}
	r.judge(engines, now, r.now().cfg.Health.Outliers)
}

// judge compares the engines of a role, and takes one out that is too slow. It holds one lock at a time: requests of before
// and after a reload may judge the same engines at once.
func (r *Router) judge(engines []*engine, now time.Time, rules Outliers) {
	seen, which := make([]pace, 0, len(engines)), make([]*engine, 0, len(engines))
	paces := make([]*pace, 0, len(engines))
	for _, e := range engines {
		if !e.usable() {
			continue
		}
		e.vitals.mu.Lock()
		seen, which = append(seen, e.vitals.pace), append(which, e)
		p := &seen[len(seen)-1] // there is room for all, so that it stays where it is
		if now.Before(e.vitals.slow) {
			p = nil
		}
		e.vitals.mu.Unlock()
		paces = append(paces, p)
	}
	worst := outlier(paces, now, rules)
	for i, e := range which {
		v := &e.vitals
		v.mu.Lock()
		if v.pace.since != seen[i].since {
			v.pace.since, v.pace.slow = seen[i].since, 0
		}
		if i == worst {
			v.pace = pace{}
			v.slow, v.since = now.Add(rules.Ejected), now.Add(rules.Ejected) // then it starts slowly
			v.counts[ejectedSlow].Add(1)
			v.special.Store(true)
		}
		v.mu.Unlock()
	}
	if worst >= 0 {
		r.log.Warn("engine is out", "engine", which[worst].name, "reason", ejectedSlow.String(), "pause", rules.Ejected, "seconds_per_token", seen[worst].mean)
	}
}
