package policies

// Filter leaves candidates out of a choice. It allocates nothing.
type Filter interface {
	// Filter sets keep[i] for each candidate i that stays. There is at least one candidate.
	Filter(c *Candidates, keep []bool)
}

// Scorer rates candidates. It allocates nothing.
type Scorer interface {
	// Score sets scores[i] for each candidate i, from 0, the worst, to 1, the best. They are 0 before; there is at least one candidate.
	Score(c *Candidates, scores []float64)
}

// Picker takes one of the candidates. It allocates nothing.
type Picker interface {
	// Pick returns the candidate that is taken, and the one that it was compared with, -1 if there is none. scores has the weighted
	// sum of all scorers for each candidate; there is at least one candidate.
	Pick(c *Candidates, scores []float64) (taken, other int)
}

// role is how one engine of a role is chosen.
type role struct {
	name string // of the preset; scored if it is none

	pickerName string
	filters    []filter
	scorers    []scorer
	picker     Picker
	prefix     bool // a scorer looks at what engines have of the prompt
	session    bool // a scorer looks at the request's session
	adapter    bool // a scorer looks at which adapters engines have
}

type filter struct {
	Filter
	why    string // what becomes of those that it leaves out, for people
	strict bool   // where no candidate passes there is none; else all stay
}

type scorer struct {
	Scorer
	name   string
	weight float64
}

// picked remembers what a choice compared, for Choice.Why.
type picked struct {
	by          *role
	load, other int32   // requests in flight of the engine taken, and of the one it was compared with; other -1: none
	cached      int32   // tokens of the prompt that the engine taken is thought to have
	most        int32   // the most that any candidate is thought to have
	score, next float32 // of the engine taken, and of the one it was compared with
}

// choose returns the index in its role's engines of the candidate that it takes, -1 if none is left.
func (r *role) choose(c *Candidates) (int, picked) {
	w := picked{by: r, other: -1}
	if r.prefix {
		for i := range c.at {
			w.most = max(w.most, int32(c.Engine(i).Cached))
		}
	}
	if c.applyAll(r.filters); c.Len() == 0 {
		return -1, w
	}
	taken, other := c.takePart(r.session), -1
	if taken < 0 {
		c.rate(r.scorers)
		taken, other = r.picker.Pick(c, c.scores)
		w.score = float32(c.scores[taken])
	}
	e := c.Engine(taken)
	w.load, w.cached = int32(e.InFlight), int32(e.Cached)
	if other >= 0 {
		w.other, w.next = int32(c.Engine(other).InFlight), float32(c.scores[other])
	}
	c.told.take(c.at[taken])
	return c.at[taken], w
}

// applyAll leaves out what filters do not keep; none if only one engine may serve the request.
func (c *Candidates) applyAll(filters []filter) {
	for _, f := range filters {
		if c.Len() > 0 && !c.Request.Pinned {
			c.apply(f)
		}
	}
}

// apply leaves out what a filter does not keep.
func (c *Candidates) apply(f filter) {
	c.keep = room(c.keep, len(c.at))
	clear(c.keep)
	f.Filter.Filter(c, c.keep)
	left := 0
	for _, k := range c.keep {
		if k {
			left++
		}
	}
	if left > 0 || f.strict {
		c.retain(c.keep, f.why)
	}
}

// rate sums up the scores of all candidates.
func (c *Candidates) rate(scorers []scorer) {
	c.scores, c.term = room(c.scores, len(c.at)), room(c.term, len(c.at))
	clear(c.scores)
	for _, s := range scorers {
		clear(c.term)
		s.Score(c, c.term)
		for i, x := range c.term {
			c.scores[i] += s.weight * x
		}
		c.told.score(c.at, s, c.term)
	}
}

// lowestIsBest turns costs into scores: the lowest is 1, the highest 0, all are 1 if they are the same.
func lowestIsBest(costs []float64) {
	low, high := costs[0], costs[0]
	for _, x := range costs {
		low, high = min(low, x), max(high, x)
	}
	for i, x := range costs {
		costs[i] = 1
		if high > low {
			costs[i] = (high - x) / (high - low)
		}
	}
}
