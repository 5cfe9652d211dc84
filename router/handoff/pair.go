package handoff

import (
	"cmp"
	"slices"
	"time"
)

// times are hand-offs: how many, the seconds that they took, and those that they take in the mean of the model.
type times struct {
	fading
	n, took, expected float64
	whole             float64 // took, without a bound
}

func (t *times) fade(now time.Time, over time.Duration) {
	k := t.factor(now, over)
	t.n, t.took, t.expected, t.whole = k*t.n, k*t.took, k*t.expected, k*t.whole
}

// add adds a hand-off, which counts at most as most.
func (t *times) add(took, most, expected float64) {
	t.n, t.took, t.expected, t.whole = t.n+1, t.took+min(took, most), t.expected+expected, t.whole+took
}

// ratio is how many times as long they take as in the mean of the model; 1 if there are none.
func (t *times) ratio() float64 {
	if t.expected <= 0 {
		return 1
	}
	return t.took / t.expected
}

// pair is a prefill with a decode engine.
type pair struct {
	model string
	late  times // recent ones
	// usual is its history. A hand-off that takes more than slow times as long does not change it, and while the pair is slow none does, so that
	// what is usual does not grow with a fault. A pair that has been slow for the time settled is measured anew: it stays slow if other pairs of
	// the model are faster, and else what it takes now becomes usual.
	usual      times
	others     float64 // the least ratio of the model's other pairs that are sound, when it was judged; 0: there are none
	seen       time.Time
	slowByTime bool      // whatever its decode engine does
	since      time.Time // since when it is slowByTime, or is not
	slow       bool      // and that is not because decode computes: what Change and PairStats say
	changed    time.Time // since when it is slow, or is not
	path       bool      // and its engines with others are not: it is the path between the two
	times      float64   // as long as usual, when it was judged
}

func (p *pair) fade(now time.Time) {
	p.late.fade(now, recent)
	if p.slowByTime {
		p.usual.last = now // it is kept
	} else {
		p.usual.fade(now, history)
	}
}

// usually is the ratio that is usual for the pair: its own, or the least of others if all take longer; 0 if neither is known.
func (p *pair) usually() float64 {
	if p.usual.n < learned {
		return p.others
	}
	return max(p.usual.ratio(), p.others)
}

// partners are the engines of the other role with which an engine has had hand-offs lately, and how many of these pairs are slow.
type partners struct{ all, slow int }

// slowPairs judges by time alone which pairs are slow (pair.slowByTime), and returns for each decode and each prefill engine how many of its pairs are.
func (w *Watch) slowPairs(now time.Time) (decode, prefill map[string]partners) {
	ratios, sound := map[string][]float64{}, map[string][]float64{} // of pairs that have recent hand-offs, by model
	for key, p := range w.pairs {
		if p.fade(now); p.late.n >= few {
			ratios[p.model] = append(ratios[p.model], p.late.ratio())
			if e := w.engines[key[1]]; !p.slowByTime && (e == nil || !e.recomputing) {
				sound[p.model] = append(sound[p.model], p.late.ratio())
			}
		}
	}
	for model := range ratios {
		slices.Sort(ratios[model])
		slices.Sort(sound[model])
	}
	decode, prefill = map[string]partners{}, map[string]partners{}
	for key, p := range w.pairs {
		p.others = leastWithout(sound[p.model], p.late.ratio())
		if is := p.isSlow(now, ratios[p.model]); is != p.slowByTime {
			p.slowByTime, p.since = is, now
		}
		if p.late.n >= few {
			prefill[key[0]] = prefill[key[0]].with(p.slowByTime)
			decode[key[1]] = decode[key[1]].with(p.slowByTime)
		}
	}
	return decode, prefill
}

func (p partners) with(slow bool) partners {
	if p.all++; slow {
		p.slow++
	}
	return p
}

// others reports whether the engine is not slow with all of several partners: else it is the engine that is slow.
func (p partners) others() bool { return p.all < 2 || p.slow < p.all }

// isSlow reports whether the pair is slow, by its own history and by the ratios of all pairs of the model.
func (p *pair) isSlow(now time.Time, all []float64) bool {
	switch {
	case now.Sub(p.seen) >= forgotten:
		return false
	case p.late.n < few && !p.slow: // few may show the end: else it never came where there are few
		return false
	}
	if p.slowByTime && now.Sub(p.since) >= settled {
		p.usual = times{}
	}
	own := p.usually()
	usual := own
	if len(all) > 1 {
		usual = max(usual, medianWithout(all, p.late.ratio())) // where most pairs are as slow, it is not this one
	}
	switch {
	case usual > 0:
		p.times = p.late.whole / p.late.expected / cmp.Or(own, usual)
	case p.late.n < few && now.Sub(p.since) < settled: // nothing shows the end
		return true
	default:
		p.times = 0
		return false
	}
	ratio, excess := p.late.ratio()/usual, (p.late.took-usual*p.late.expected)/p.late.n
	if p.slow {
		return ratio >= again && excess >= minExcess.Seconds()/2
	}
	return ratio >= slow && excess >= minExcess.Seconds()
}

// leastWithout is the least of a sorted list without one value, which need not be in it; 0 if there is no other.
func leastWithout(all []float64, one float64) float64 {
	if len(all) > 0 && all[0] == one {
		all = all[1:]
	}
	if len(all) == 0 {
		return 0
	}
	return all[0]
}

// medianWithout is the median of a sorted list without one of its values.
func medianWithout(all []float64, one float64) float64 {
	i, _ := slices.BinarySearch(all, one)
	middle := (len(all) - 1) / 2 // of those that are left
	if middle >= i {
		middle++
	}
	return all[min(middle, len(all)-1)]
}
