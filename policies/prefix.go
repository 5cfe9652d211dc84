package policies

import "strconv"

// The policy prefix gives a prompt to the engine with the least to do, where what its prefix cache holds of the prompt counts against
// what others have it do. The unit is a token that is computed. The numbers were chosen by replays of two traces of conversations
// (`pdrouter bench replay/mooncake`): with 16 the engines find 0.95 of what can be found, and as many requests are good as with any other
// number from 2 on; what a request in flight counts makes hardly a difference there, but does where answers are long.
const (
	// prefixWeight is what a token found is worth. It is more than the one that is not computed: whoever comes next with the same beginning
	// finds it there too, while an engine that computes it anew holds it a second time, in the place of something else.
	prefixWeight = 16
	// loadWeight is what a request in flight counts beside its prompt: its answer, for as long as that takes.
	loadWeight = 512
	// mostAhead is how many requests in flight an engine may have more than the one with the fewest, whatever it holds: so a beginning
	// that all prompts have is never for one engine alone.
	mostAhead = 64
)

// cost is what a choice by prefix makes small.
func (e *Engine) cost() int { return e.Backlog + loadWeight*e.InFlight - prefixWeight*e.Cached }

// lowestCost returns the candidate with the lowest cost of those that are not too far ahead, equals taking turns, and the most tokens that
// another has of the prompt, -1 if none has more than it.
func (c *candidates) lowestCost(turn uint64) (at, other int) {
	fewest := -1
	for i := range c.engines {
		if n := c.engines[i].InFlight; (fewest < 0 || n < fewest) && c.has(i) {
			fewest = n
		}
	}
	bound := fewest + mostAhead
	least, most, equals := 0, 0, uint64(0)
	for i := range c.engines {
		if !c.has(i) {
			continue
		}
		e := &c.engines[i]
		most = max(most, e.Cached)
		if e.InFlight >= bound {
			continue
		}
		switch cost := e.cost(); {
		case equals == 0 || cost < least:
			least, equals = cost, 1
		case cost == least:
			equals++
		}
	}
	if at = -1; equals == 0 {
		return at, -1
	}
	k := turn % equals
	for i := range c.engines {
		if c.engines[i].InFlight >= bound || c.engines[i].cost() != least || !c.has(i) {
			continue
		}
		if k == 0 {
			at = i
			break
		}
		k--
	}
	if at < 0 || most <= c.engines[at].Cached {
		most = -1
	}
	return at, most
}

// receiving is the picker for an engine that is handed the KV of a prompt instead of computing it: what its cache holds spares it
// nothing but a part of the transfer, so by prefix it is the one with the least load.
func (p picker) receiving() picker {
	if p == prefix {
		return leastLoad
	}
	return p
}

// appendPrefix says what an engine picked by prefix has of the prompt, such as "0 cached (another 512), 2 in flight".
func (p picked) appendPrefix(b []byte) []byte {
	b = append(strconv.AppendInt(append(b, ' '), int64(p.cached), 10), " cached"...)
	if p.other >= 0 {
		b = append(strconv.AppendInt(append(b, " (another "...), int64(p.other), 10), ')')
	}
	return append(strconv.AppendInt(append(b, ", "...), int64(p.load), 10), " in flight"...)
}
