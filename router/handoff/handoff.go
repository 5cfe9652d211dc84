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

// Forget drops an engine that is gone, with its pairs.
func (w *Watch) Forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.engines, name)
	maps.DeleteFunc(w.pairs, func(key [2]string, _ *pair) bool { return key[0] == name || key[1] == name })
	w.publish()
}
