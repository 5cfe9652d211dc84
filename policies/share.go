package policies

// fullWeight reports whether the engine may be given as much as any other.
func (e *Engine) fullWeight() bool { return e.Share <= 0 || e.Share >= 1 }

// starting reports whether some candidate is to be given less than others. Where all of them are, they share evenly.
func (c *candidates) starting() bool {
	part := false
	for i := range c.engines {
		part = part || !c.engines[i].fullWeight()
	}
	if !part { // nearly always, and it costs no question about pairs
		return false
	}
	part, full := false, false
	for i := range c.engines {
		if c.has(i) {
			part, full = part || !c.engines[i].fullWeight(), full || c.engines[i].fullWeight()
		}
	}
	return part && full
}

// sampled returns the candidates for one draw: an engine in its slow start takes part only with odds of its share. The others have full
// weight, so there is always one.
func (c candidates) sampled(rnd uint64, odds float64) candidates {
	c.sampling, c.rnd, c.odds = true, rnd, odds
	return c
}

// takesPart says whether a starting engine is among the candidates of this draw.
func (c *candidates) takesPart(i int) bool {
	return unit(mix(c.rnd+uint64(i)*0x9e3779b97f4a7c15)) < c.engines[i].Share*c.odds
}

// pickStarting picks where some candidates start. Of n candidates, one with share s is picked at most s/n of the time:
// s of what it would get if all had the same load.
func (p picker) pickStarting(c candidates, n, turn, rnd uint64) (at, other int) {
	switch p {
	case roundRobin:
		if at = c.nth(turn % n); at >= 0 && (c.engines[at].fullWeight() || unit(turn/n*0x9e3779b97f4a7c15) < c.engines[at].Share) {
			return at, -1
		}
		return c.oneOfFullWeight(mix(turn)), -1
	case random:
		if at = c.nth(below(rnd, n)); at >= 0 && (c.engines[at].fullWeight() || unit(mix(^rnd)) < c.engines[at].Share) {
			return at, -1
		}
		return c.oneOfFullWeight(mix(rnd)), -1
	case leastLoad: // it has the least nearly always, as it had no time to get more
		c = c.sampled(mix(rnd), 1/float64(n))
		return c.least(turn)
	case prefix: // the same: it has nothing cached either
		c = c.sampled(mix(rnd), 1/float64(n))
		return c.lowestCost(turn)
	default: // it is one of two with odds of 2/n
		c = c.sampled(mix(^rnd), 0.5)
		return c.lesserOfTwo(rnd, uint64(c.count()))
	}
}

// oneOfFullWeight returns one of the candidates with full weight.
func (c candidates) oneOfFullWeight(rnd uint64) int {
	c = c.sampled(0, 0)
	return c.nth(below(rnd, uint64(c.count())))
}

// unit maps a uniform 64-bit value to 0..1.
func unit(rnd uint64) float64 { return float64(rnd>>11) / (1 << 53) }
