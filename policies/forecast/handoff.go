package forecast

import (
	"maps"
	"math"
	"sync"

	"pdrouter/policies"
)

// transfers is how long a model's engines take to give KV to each other, and how many times as long as that each pair of them takes.
type transfers struct {
	kind   transferKind
	mu     sync.RWMutex
	fit    fit // seconds by policies.MoveTerms
	pairs  map[[2]*Engine]pace
	looked float64 // when forget looked last
}

// transferKind is for what KV is given.
type transferKind uint8

const (
	handOff   transferKind = iota // from prefill's end to decode's first token
	migration                     // of a conversation, by two requests of one token
	transferKinds
)

// ends is how many times as long as in the mean transfers from and to an engine take.
type ends struct{ sends, receives pace }

func newTransfers(kind transferKind, first []float64) transfers {
	return transfers{kind: kind, fit: newFit(first...), pairs: map[[2]*Engine]pace{}}
}

const (
	// mostPairs bounds the pairs. Past it all are forgotten.
	mostPairs = 1 << 14
	// likeOthers is how many of a pair's transfers what is thought of it before the first one counts.
	likeOthers = 3
	// forgetPairsAfter is after how many seconds without a transfer what is known of a pair and of its ends is forgotten, as package router/handoff
	// does. Else a pair whose first transfer was slow, as an engine warmed up, would be given nothing any more by which it could show that it is not.
	forgetPairsAfter = 300
)

// Moved notes the seconds between the end of a prompt at one engine and the first token from another, which lacked so many of its tokens.
func (m *Model) Moved(now float64, from, to *Engine, tokens int, seconds float64) {
	m.handOffs.learn(now, from, to, tokens, seconds)
}

// Migrated notes the seconds in which a conversation's KV was moved from one engine to another, without those in which either had others to serve.
func (m *Model) Migrated(now float64, from, to *Engine, tokens int, seconds float64) {
	if expected := m.migrations.learn(now, from, to, tokens, seconds); expected > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.astray += (math.Min(1, math.Abs(seconds-expected)/seconds) - m.astray) / 16
	}
}

// Migration is how many seconds it is thought to take to move the KV of so many tokens from one engine to another while neither has anything else to do, and by
// which part moves have differed from that.
func (m *Model) Migration(from, to *Engine, tokens int) (seconds, differs float64) {
	if from == nil || to == nil {
		return 0, 1
	}
	seconds = m.migrations.expected(tokens, to.StepSeconds()) * m.migrations.slower(from, to)
	m.mu.Lock()
	defer m.mu.Unlock()
	return seconds, m.astray
}

// learn takes in how long a transfer took, and returns what it was expected to take; 0 if nothing is learned.
func (h *transfers) learn(now float64, from, to *Engine, tokens int, seconds float64) (expected float64) {
	if seconds <= 0 || from == nil || to == nil {
		return 0
	}
	step := to.StepSeconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if from.gone || to.gone {
		return 0
	}
	x := moveTerms(tokens, step)
	mean := h.fit.of(x)
	pair := [2]*Engine{from, to}
	r, seen := h.pairs[pair]
	if !seen {
		r.ratio = ratio{likeOthers * mean * h.slowerLocked(from, to), likeOthers * mean}
		if len(h.pairs) >= mostPairs {
			h.forgetLocked(math.Inf(1))
		}
	}
	expected = mean * r.value()
	seconds, mean = h.fit.learnFrom(x, seconds, &r.ratio)
	sends, receives := &from.ends[h.kind].sends, &to.ends[h.kind].receives
	sends.add(seconds, mean)
	receives.add(seconds, mean)
	r.seen, sends.seen, receives.seen = now, now, now
	h.pairs[pair] = r
	return expected
}

// forget forgets pairs and ends without a transfer for forgetPairsAfter. It does nothing if it looked a tenth of that time ago or less.
func (h *transfers) forget(now float64) {
	h.mu.RLock()
	soon := now-h.looked < forgetPairsAfter/10
	h.mu.RUnlock()
	if soon {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked = now
	h.forgetLocked(now)
}

func (h *transfers) forgetLocked(now float64) {
	maps.DeleteFunc(h.pairs, func(pair [2]*Engine, r pace) bool {
		if now-r.seen <= forgetPairsAfter {
			return false
		}
		pair[0].ends[h.kind].sends.forget(now, forgetPairsAfter)
		pair[1].ends[h.kind].receives.forget(now, forgetPairsAfter)
		return true
	})
}

// Gone notes that the engine is of no configuration any more: what is known of its pairs is forgotten, and nothing is learned of them.
func (e *Engine) Gone() {
	both := [...]*transfers{&e.model.handOffs, &e.model.migrations}
	for _, h := range both {
		h.mu.Lock()
		defer h.mu.Unlock()
	}
	e.gone = true
	for _, h := range both {
		maps.DeleteFunc(h.pairs, func(pair [2]*Engine, _ pace) bool { return pair[0] == e || pair[1] == e })
	}
}

// slowerLocked is what is thought of a pair of which no transfer was seen: its slower end decides how long it takes.
func (h *transfers) slowerLocked(from, to *Engine) float64 {
	return max(from.ends[h.kind].sends.value(), to.ends[h.kind].receives.value())
}

// HandOff is how many times as long as in the mean of the model's engines a hand-off from one engine to another takes.
func (m *Model) HandOff(from, to *Engine) float64 { return m.handOffs.slower(from, to) }

// slower is how many times as long as in the mean a transfer from one engine to another takes.
func (h *transfers) slower(from, to *Engine) float64 {
	if from == nil || to == nil {
		return 1
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	if r, seen := h.pairs[[2]*Engine{from, to}]; seen {
		return r.value()
	}
	return h.slowerLocked(from, to)
}

// MoveSeconds is how long a hand-off of so many tokens to an engine without streams takes, in the mean of pairs.
func (m *Model) MoveSeconds(tokens int) float64 {
	return m.handOffs.expected(tokens, m.stepSeconds(0, 0))
}

// moveTerms are policies.MoveTerms.
func moveTerms(tokens int, step float64) vector {
	t := policies.MoveTerms(tokens, step)
	return vector{t[0], t[1], t[2]}
}

// expected is how long a transfer takes to an engine whose steps take so many seconds, in the mean of the engines.
func (h *transfers) expected(tokens int, step float64) float64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.fit.of(moveTerms(tokens, step))
}

// terms are the seconds for each of policies.MoveTerms.
func (h *transfers) terms() [3]float64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return [3]float64(h.fit.weights[:3])
}
