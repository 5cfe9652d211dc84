// Package handoff watches the hand-offs of split requests for two things that no error shows: a decode engine that computes prompts whose KV it
// should have received, and a pair of engines whose hand-offs have become slow. It takes times and reads no clock. Package exchange tells it what it
// saw of each request; package router has it judge, logs what begins and ends, and shows it.
package handoff

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// HandOff is what is known of a hand-off when decode's first token is here.
type HandOff struct {
	Model, Prefill, Decode string

	Tokens    int           // of the prompt
	Took      time.Duration // from prefill's answer to decode's first token
	Computing time.Duration // what prefill would have taken for all tokens of the prompt
}

// How it is judged. An occurrence that is sustained is found within a minute: half of the recent requests are bad after 21 s.
const (
	recent  = 30 * time.Second // how long what was counts as recent: by then it counts a third
	history = 10 * time.Minute // likewise as the pair's usual time
	few     = 3                // of what is recent, what is judged by at least
	learned = 20               // hand-offs by which what is usual is known

	begins, ends = .5, .2 // share of bad requests
	suspected    = .1     // from this share on it is not said that a pair is slow: that may be why

	minComputed = 128 // tokens: less is the rest of a block that cannot be handed over

	slow, again = 3, 2                  // times as long as usual: becomes slow, is not slow any more
	outlier     = 8                     // times as long as usual: a hand-off counts as no more
	minExcess   = 20 * time.Millisecond // what a slow pair takes more, in the mean
	forgotten   = 5 * time.Minute       // without a hand-off nothing is held against an engine or a pair any more
	settled     = time.Hour             // a pair that has been slow for so long is measured anew; see pair.usual

	maxPairs = 1 << 16
)

// By is how it was seen that an engine computed a prompt.
type By uint8

// The signs.
const (
	ByCount    By = iota // the engine counts so few cached tokens of the prompt
	ByTransfer           // the plane reported that the transfer failed, and the engine answered
	ByTime               // the engine does not count, and its first tokens come as late as if it computed, whichever prefill engine hands over
	Signs
)

func (b By) String() string { return [Signs]string{"count", "transfer", "time"}[b] }

// Watch knows the engines and pairs. It is safe for concurrent use. New makes one.
type Watch struct {
	troubled atomic.Pointer[troubled] // nil: nothing

	mu      sync.Mutex
	models  map[string]*line
	engines map[string]*engine
	pairs   map[[2]string]*pair
}

// New returns a Watch that has seen nothing.
func New() *Watch {
	return &Watch{models: map[string]*line{}, engines: map[string]*engine{}, pairs: map[[2]string]*pair{}}
}

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

// Seen is what one hand-off shows.
type Seen struct {
	Late bool          // it took more than three times as long as usual, and a client may notice
	Path time.Duration // what it took more than usual, if the pair is slow and its engines with others are not: then it is the path between them
}

// FirstToken notes a hand-off whose first token has come.
func (w *Watch) FirstToken(now time.Time, o HandOff) (seen Seen) {
	took := o.Took.Seconds()
	if took <= 0 || o.Tokens <= 0 {
		return seen
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.models[o.Model]
	if m == nil {
		m = new(line)
		w.models[o.Model] = m
	}
	m.fade(now)
	expected := m.of(float64(o.Tokens), took)
	p := w.pair(o)
	p.fade(now)
	usual := p.usually() * expected
	e := w.engine(o.Decode, now)
	late := usual > 0 && took > slow*usual
	seen.Late = late && took-usual > minExcess.Seconds()
	if p.path && took > usual {
		seen.Path = o.Took - time.Duration(usual*float64(time.Second))
	}
	if late && o.Computing > 0 && o.Took >= o.Computing/2 {
		e.late++
		if e.recomputing && !e.counts() {
			e.prompts[ByTime]++
		}
	} else {
		e.soon++
	}
	p.seen = now
	most := math.Inf(1)
	if usual > 0 {
		most = max(outlier*usual, usual+2*minExcess.Seconds())
	}
	p.late.add(took, most, expected)
	if late || p.slowByTime || e.recomputing {
		return seen // that is not to become what is usual
	}
	m.learn(float64(o.Tokens), min(took, 2*expected))
	p.usual.add(took, took, expected)
	return seen
}

// Counted notes how many tokens of a prompt the decode engine says that it did not have to compute.
func (w *Watch) Counted(now time.Time, decode string, prompt, held int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engine(decode, now)
	if computed := prompt - held; computed >= minComputed && 2*computed > prompt {
		e.bad++
		e.prompts[ByCount]++
	} else {
		e.good++
	}
}

// Answered notes that a decode engine has answered although the plane has reported that the KV did not come.
func (w *Watch) Answered(now time.Time, decode string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engine(decode, now)
	e.bad++
	e.prompts[ByTransfer]++
}

func (w *Watch) engine(name string, now time.Time) *engine {
	e := w.engines[name]
	if e == nil {
		e = new(engine)
		w.engines[name] = e
	}
	e.seen = now
	e.fade(now)
	return e
}

func (w *Watch) pair(o HandOff) *pair {
	key := [2]string{o.Prefill, o.Decode}
	p := w.pairs[key]
	if p == nil {
		if len(w.pairs) >= maxPairs {
			clear(w.pairs)
		}
		p = &pair{model: o.Model}
		w.pairs[key] = p
	}
	return p
}

// counts reports whether the engine says how many tokens it had: then its times say nothing more.
func (e *engine) counts() bool { return e.good+e.bad >= 1 }

// Change is something that has begun or ended.
type Change struct {
	Prefill string // "": it is about the engine Decode, not about a pair
	Decode  string
	Begins  bool
	Times   float64       // of a pair: how many times as long as usual its hand-offs take
	Share   float64       // of an engine: the part of its recent prompts that it computed
	Seconds float64       // of a pair: its recent hand-offs, in the mean
	Lasted  time.Duration // where it ends: how long it was so
}

// Judge decides about every engine and pair, and returns what has begun or ended since the last call, by name. Call it every few seconds.
func (w *Watch) Judge(now time.Time) (changes []Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	receives, sends := w.slowPairs(now)
	for _, name := range slices.Sorted(maps.Keys(w.engines)) {
		e := w.engines[name]
		e.fade(now)
		is, share := e.judged(now, receives[name])
		if is != e.recomputing {
			if e.recomputing = is; !is {
				w.forgetRecent(name)
			}
			changes = append(changes, Change{Decode: name, Begins: is, Share: share, Lasted: now.Sub(e.changed)})
			e.changed = now
		}
	}
	keys := slices.SortedFunc(maps.Keys(w.pairs), func(x, y [2]string) int {
		return cmp.Or(strings.Compare(x[0], y[0]), strings.Compare(x[1], y[1]))
	})
	for _, key := range keys {
		p, e := w.pairs[key], w.engines[key[1]]
		is := p.slowByTime
		if e != nil && (e.recomputing || e.counts() && e.share() >= suspected) { // then it is no matter of the pair
			is = false
		}
		p.path = is && receives[key[1]].others() && sends[key[0]].others()
		if is != p.slow {
			p.slow = is
			changes = append(changes, Change{Prefill: key[0], Decode: key[1], Begins: is, Times: p.times, Seconds: p.late.whole / max(p.late.n, 1e-9), Lasted: now.Sub(p.changed)})
			p.changed = now
		}
	}
	if len(changes) > 0 {
		w.publish()
	}
	return changes
}

// troubled is what was judged last. It is never changed.
type troubled struct {
	engines map[string]bool
	pairs   map[[2]string]bool
}

// publish has Troubled tell what was judged.
func (w *Watch) publish() {
	t := &troubled{map[string]bool{}, map[[2]string]bool{}}
	for name, e := range w.engines {
		if e.recomputing {
			t.engines[name] = true
		}
	}
	for key, p := range w.pairs {
		if p.slow {
			t.pairs[key] = true
		}
	}
	if len(t.engines)+len(t.pairs) == 0 {
		t = nil
	}
	w.troubled.Store(t)
}

// Troubled returns what says of a prefill and a decode engine whether their hand-offs are slow, or the decode engine computes prompts; nil while
// that is so of none. It takes no lock.
func (w *Watch) Troubled() func(prefill, decode string) bool {
	t := w.troubled.Load()
	if t == nil {
		return nil
	}
	return func(prefill, decode string) bool { return t.engines[decode] || t.pairs[[2]string{prefill, decode}] }
}

// forgetRecent forgets how long recent hand-offs to an engine took: it has computed meanwhile.
func (w *Watch) forgetRecent(decode string) {
	for key, p := range w.pairs {
		if key[1] == decode {
			p.late, p.slowByTime = times{}, p.slow
		}
	}
}

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

// Forget drops an engine that is gone, with its pairs.
func (w *Watch) Forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.engines, name)
	maps.DeleteFunc(w.pairs, func(key [2]string, _ *pair) bool { return key[0] == name || key[1] == name })
	w.publish()
}
