package policies

import "math/bits"

// picker is one way to choose among candidates.
type picker uint8

const (
	roundRobin picker = iota
	random
	leastLoad
	powerOfTwo
	prefix // see prefix.go
)

// pickerNames lists every picker for messages.
const pickerNames = "round_robin, random, least_load, power_of_two or prefix"

func (p picker) String() string {
	switch p {
	case roundRobin:
		return "round_robin"
	case random:
		return "random"
	case leastLoad:
		return "least_load"
	case prefix:
		return "prefix"
	default:
		return "power_of_two"
	}
}

func parsePicker(s string) (picker, bool) {
	for p := roundRobin; p <= prefix; p++ {
		if p.String() == s {
			return p, true
		}
	}
	return 0, false
}

// picked remembers what a pick compared, for Choice.Why.
type picked struct {
	by          picker
	load, other int // requests in flight of the engine picked, and of the one it was compared with; other -1: none
	cached      int // by prefix: tokens of the prompt that the engine picked is thought to have
}

// pick returns the index of one of c, or -1 if there is none.
func (p picker) pick(c candidates, turn, rnd uint64) (int, picked) {
	n := uint64(c.count())
	w := picked{by: p, other: -1}
	if n == 0 {
		return -1, w
	}
	at := -1
	switch {
	case c.starting():
		at, w.other = p.pickStarting(c, n, turn, rnd)
	case p == roundRobin:
		at = c.nth(turn % n)
	case p == random:
		at = c.nth(below(rnd, n))
	case p == leastLoad:
		at, w.other = c.least(turn)
	case p == powerOfTwo:
		at, w.other = c.lesserOfTwo(rnd, n)
	case p == prefix:
		at, w.other = c.lowestCost(turn)
	}
	if at < 0 { // pairs came and went meanwhile
		return -1, w
	}
	w.load, w.cached = c.engines[at].InFlight, c.engines[at].Cached
	return at, w
}

// candidates are the engines of one role that a pick may return. With partners set, an engine must be pairable
// with at least one usable partner; with partner set, it must be pairable with Prefill[partner].
type candidates struct {
	engines  []Engine
	partners []Engine
	pairable func(p, d int) bool
	partner  int // index of the prefill engine already chosen, if paired
	paired   bool

	sampling bool // starting engines take part by chance; see sampled
	rnd      uint64
	odds     float64
}

func (c *candidates) has(i int) bool {
	if !c.engines[i].Usable || c.sampling && !c.engines[i].fullWeight() && !c.takesPart(i) {
		return false
	}
	if c.paired {
		return c.pairable == nil || c.pairable(c.partner, i)
	}
	if c.partners == nil {
		return true
	}
	for d := range c.partners {
		if c.partners[d].Usable && (c.pairable == nil || c.pairable(i, d)) {
			return true
		}
	}
	return false
}

func (c *candidates) count() int {
	n := 0
	for i := range c.engines {
		if c.has(i) {
			n++
		}
	}
	return n
}

// nth returns the index of candidate k, counted from 0. There must be more than k.
func (c *candidates) nth(k uint64) int {
	for i := range c.engines {
		if !c.has(i) {
			continue
		}
		if k == 0 {
			return i
		}
		k--
	}
	return -1
}

// least returns a candidate with the fewest requests in flight, equals taking turns, and the fewest that any other
// candidate has, -1 if there is no other.
func (c *candidates) least(turn uint64) (at, other int) {
	low, next, equals := -1, -1, uint64(0)
	for i := range c.engines {
		if !c.has(i) {
			continue
		}
		switch load := c.engines[i].InFlight; {
		case low < 0 || load < low:
			low, next, equals = load, low, 1
		case load == low:
			next, equals = load, equals+1
		case next < 0 || load < next:
			next = load
		}
	}
	if equals == 0 {
		return -1, -1
	}
	k := turn % equals
	for i := range c.engines {
		if c.engines[i].InFlight != low || !c.has(i) {
			continue
		}
		if k == 0 {
			return i, next
		}
		k--
	}
	return -1, next
}

// lesserOfTwo draws two different candidates of n and returns the one with fewer requests in flight, the first
// drawn among equals, and how many the other has, -1 if there is no other.
func (c *candidates) lesserOfTwo(rnd, n uint64) (at, other int) {
	k := below(rnd, n)
	first := c.nth(k)
	if n <= 1 || first < 0 {
		return first, -1
	}
	second := c.nth((k + 1 + below(mix(rnd), n-1)) % n)
	if second < 0 {
		return first, -1
	}
	if c.engines[second].InFlight < c.engines[first].InFlight {
		first, second = second, first
	}
	return first, c.engines[second].InFlight
}

// below maps a uniform 64-bit value to 0..n-1.
func below(rnd, n uint64) uint64 {
	hi, _ := bits.Mul64(rnd, n)
	return hi
}

// mix derives a second random value from one, by the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// lcm returns the least common multiple; 0 if one of them is 0.
func lcm(a, b int) uint64 {
	if a == 0 || b == 0 {
		return 0
	}
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return uint64(a / x * b)
}
