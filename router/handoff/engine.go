package handoff

import "time"

// engine is a decode engine. Its counts are of recent requests.
type engine struct {
	fading
	good, bad   float64 // of which it is certain, by count or by the plane
	soon, late  float64 // by the time of their first token
	prompts     [Signs]uint64
	seen        time.Time
	recomputing bool
	counted     bool      // and that was seen by what is certain
	changed     time.Time // since when
}

func (e *engine) fade(now time.Time) {
	k := e.factor(now, recent)
	e.good, e.bad, e.soon, e.late = k*e.good, k*e.bad, k*e.soon, k*e.late
}

// counts reports whether the engine says how many tokens it had: then its times say nothing more.
func (e *engine) counts() bool { return e.good+e.bad >= 1 }

// judged reports whether the engine computes prompts, and the share of them. from is what is known of the pairs that hand over to it.
func (e *engine) judged(now time.Time, from partners) (is bool, share float64) {
	n := e.good + e.bad
	if share = e.share(); !e.counts() {
		// One slow pair may have a slow link. That all are slow shows that it is the engine, which computes or cannot receive.
		n = e.late + e.soon
		if share = e.late / max(n, 1e-9); share >= begins && from.others() && !e.recomputing {
			return false, share
		}
	}
	switch {
	case now.Sub(e.seen) >= forgotten, share <= ends && n >= 1 && e.counts() == e.counted: // few may show the end: else it never came where there are few
		return false, share
	case n < few:
	case share >= begins:
		e.counted = e.counts()
		return true, share
	case share <= ends:
		return false, share
	}
	return e.recomputing, share
}

// share is the part of the recent prompts that the engine has computed, where that is certain.
func (e *engine) share() float64 { return e.bad / max(e.good+e.bad, 1e-9) }
