package policies

// Engines that are to get less than others: those in their slow start, and those with a weight. It is the same for every policy: engines get
// requests in proportion to their parts, whatever their scores; those with a full part share theirs by the policy.

// part returns the engine's part.
func (e *Engine) part(slowStart bool) float64 {
	p := 1.0
	if e.Place != nil && e.Place.Weight > 0 {
		p = e.Place.Weight
	}
	if slowStart && e.Share > 0 {
		p *= min(e.Share, 1)
	}
	return p
}

// takePart takes a candidate with less than a full part, or leaves all of these out. It returns -1 then, and also where no candidate
// has less than another. sticky says that a session is to have the same answer each time.
func (c *Candidates) takePart(sticky bool) int {
	even, started := true, false
	for i := range c.at {
		e := c.Engine(i)
		even = even && e.part(true) == 1
		started = started || e.Share <= 0 || e.Share >= 1
	}
	if even { // nearly always
		return -1
	}
	most, sum := 0.0, 0.0
	for i := range c.at { // where all are new they share evenly
		p := c.Engine(i).part(started)
		most, sum = max(most, p), sum+p
	}
	u := unit(mix(^c.Draw.Random))
	if sticky && c.Request.Session != 0 {
		u = unit(mix(^c.Request.Session))
	}
	c.keep = room(c.keep, len(c.at))
	u *= sum
	for i := range c.at {
		p := c.Engine(i).part(started)
		if c.keep[i] = p == most; c.keep[i] {
			continue
		}
		if u -= p; u < 0 {
			return i
		}
	}
	c.retain(c.keep, "it has less than a full part, and it was not its turn")
	return -1
}
