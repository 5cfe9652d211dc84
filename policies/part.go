package policies

// Engines that are to get less than others: those in their slow start, and those with a weight. It is the same for every policy: of n
// candidates, one with the part p is taken in p/n of all choices, whatever its score; in the others it is left out.

// partOf returns the engine's part, in 0..1 of that of an engine with the weight most.
func (e *Engine) partOf(most float64, slowStart bool) float64 {
	p := e.weight() / most
	if slowStart && e.Share > 0 {
		p *= min(e.Share, 1)
	}
	return p
}

func (e *Engine) weight() float64 {
	if e.Place == nil || e.Place.Weight <= 0 {
		return 1
	}
	return e.Place.Weight
}

// takePart takes a candidate with less than a full part, or leaves all of these out. It returns -1 then, and also where no candidate
// has less than another.
func (c *Candidates) takePart() int {
	even, most, started := true, 0.0, false
	for i := range c.at {
		e := c.Engine(i)
		even = even && e.weight() == 1 && (e.Share <= 0 || e.Share >= 1)
		most, started = max(most, e.weight()), started || e.Share <= 0 || e.Share >= 1
	}
	if even { // nearly always
		return -1
	}
	n, u := float64(len(c.at)), unit(mix(^c.Draw.Random))
	c.keep = room(c.keep, len(c.at))
	for i := range c.at {
		p := c.Engine(i).partOf(most, started) // where all are new they share evenly
		c.keep[i] = p >= 1
		if p >= 1 {
			continue
		}
		if u -= p / n; u < 0 {
			return i
		}
	}
	full := false
	for _, k := range c.keep {
		full = full || k
	}
	if full {
		c.retain(c.keep, "it has less than a full part, and it was not its turn")
	}
	return -1
}
