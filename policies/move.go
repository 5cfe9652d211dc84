package policies

// Move is KV of the request's conversation that one engine has and another can be given before it computes the prompt. The policy cost prices the
// paths that begin with one.
type Move struct {
	From    string
	Tokens  int     // that are moved, as engines count them
	Cached  int     // tokens of the prompt that the other engine has afterwards, as those of Engine.Cached
	Last    int     // of these, those that the engine may have to compute again before it hands them over
	Work    Work    // of the engine; the zero value if it is Pinned
	Pinned  bool    // the engine keeps them for another one already: it has nothing to do for the move
	Differs float64 // by which part moves differ from what is predicted, in the mean
	// Prefill and Decode are the seconds that it takes to each of Fleet.Prefill and Fleet.Decode, without waits for other requests there. 0: the engine
	// cannot be given it now.
	Prefill, Decode []float64
}

// Moving is the move that a Path begins with.
type Moving struct {
	From    string  `json:"from"`
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"` // that it takes, predicted, with the waits at both engines
	Pinned  bool    `json:"pinned,omitempty"`

	differs float64
	nth     int // in Forecast.Moves
}

// moveOf is what a pricing knows of moves.
type moveOf struct {
	all     []Move
	now     *Moving // the one that the path begins with that is being priced; nil: it begins with none
	without float64 // the lowest price of a path that begins with none
	latest  float64 // when the first token may come after a move: without one it comes then, or the objective is over then
	gives   float64 // how likely the best path's answer keeps its objective between tokens
}

// priceMoves prices the paths that begin with a move to the engine that computes the prompt. All paths that begin with none are priced.
func (p *pricing) priceMoves(prefills, decodes *Candidates, alone bool, f *Fleet) {
	p.move.without, p.move.latest = p.best.Price, max(p.best.TTFT, p.objective.TTFT)
	for n := range p.move.all {
		m := &p.move.all[n]
		if alone {
			for i := range decodes.Len() {
				at := decodes.at[i]
				work := workOf(p.decodeWork, at)
				if c, ok := p.moved(n, decodes.Engine(i), work, at, m.Decode[at]); ok {
					g := p.giving(decodes.Engine(i), work, at, 0)
					p.offer(nil, &g, &c, c.seconds, c.within)
				}
			}
		}
		if prefills == nil {
			continue
		}
		for i := range prefills.Len() {
			at := prefills.at[i]
			c, ok := p.moved(n, prefills.Engine(i), workOf(p.prefillWork, at), at, m.Prefill[at])
			if !ok {
				continue
			}
			for j := range p.gives {
				if g := &p.gives[j]; f.pairable(c.at, g.at) {
					ttft := c.seconds + p.handOff(&c, g)
					p.offer(&c, g, &c, ttft, p.inTime(ttft))
				}
			}
		}
	}
	p.move.now = nil
}

// moved is the part of an engine that is given the KV of a move, in so many seconds, and then computes the rest of the prompt. It returns false if
// there is no use in that.
func (p *pricing) moved(n int, e *Engine, w *Work, at int, seconds float64) (part, bool) {
	m := &p.move.all[n]
	if seconds <= 0 || m.Cached <= e.Cached {
		return part{}, false
	}
	with := *e
	with.Cached = m.Cached
	c := p.computing(&with, w, at)
	reads, again := m.Work.prompt(m.Cached, m.Last)
	move := &Moving{From: m.From, Tokens: m.Tokens, Seconds: max(m.Work.Wait, reads) + again + w.Wait + seconds, Pinned: m.Pinned, differs: m.Differs, nth: n}
	p.move.now = move
	reads, computes := w.prompt(p.q.PromptTokens, max(1, p.q.PromptTokens-with.Cached))
	c.seconds = move.Seconds + reads + computes // what the engine has now is computed by then
	c.within = p.inTime(c.seconds)
	streams, gaps := p.harm(&m.Work, again) // at the other engine
	c.streams, c.gaps = c.streams+streams, c.gaps+gaps
	return c, true
}

// moveTaken is the move that the best path begins with, counted from 1, and for how many seconds it is worth waiting for.
func (p *pricing) moveTaken() (nth uint8, patience float32) {
	m := p.best.Move
	if m == nil {
		return 0, 0
	}
	price := func(later float64) float64 {
		x, ttft := &p.best, p.best.TTFT+later
		return 1 - p.inTime(ttft)*p.move.gives + x.Streams + x.Gaps + x.Room + p.late(ttft)
	}
	least, most := 0.0, m.Seconds
	for range 16 {
		if price(most) > p.move.without {
			break
		}
		least, most = most, 2*most
	}
	for range 16 {
		if between := (least + most) / 2; price(between) > p.move.without {
			most = between
		} else {
			least = between
		}
	}
	return uint8(m.nth + 1), float32(m.Seconds + min(least, p.move.latest-p.best.TTFT))
}
