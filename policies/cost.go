package policies

import (
	"math"
	"sync"
)

// The policy cost prices every path that a request can take: decode computes the prompt itself, or a prefill engine does and hands the KV over.
// The price of a path is how many requests are thought to miss their objective because of it, this one and others; the lowest price is taken.
// What it knows of engines is predicted by package forecast.

// Objective is what a request is to keep, in seconds.
type Objective struct {
	TTFT float64 // to the first token
	ITL  float64 // between tokens: in the mean of an answer, and of a hundred tokens at most one is to come later than that
	// Tolerance is by which part of it predicted times are thought to be wrong.
	Tolerance float64
	// LateWeight is what a first token counts for each TTFT after which it comes.
	LateWeight float64
}

// LateTokens is the part of an answer's tokens that may come later than Objective.ITL.
const LateTokens = .01

// Path is one that a request can take, and its price. Missed to Away are the price's parts.
type Path struct {
	Prefill string  `json:"prefill,omitempty"` // "": decode computes the prompt
	Decode  string  `json:"decode"`
	TTFT    float64 `json:"ttft_seconds"` // predicted
	ITL     float64 `json:"itl_seconds"`  // likewise, in the mean
	Price   float64 `json:"price"`
	Missed  float64 `json:"missed"`  // how likely this request misses its objective
	Streams float64 `json:"streams"` // streams at both engines that miss it because they get slower
	Gaps    float64 `json:"gaps"`    // long gaps, in this stream and in others
	Room    float64 `json:"room"`    // requests to come that find the engine busy that computes the prompt
	Late    float64 `json:"late"`    // for each time that the objective is over when the first token comes
	Away    float64 `json:"away"`    // a margin, where another engine has the conversation
	Move    *Moving `json:"move,omitempty"`
	Taken   bool    `json:"taken"`
}

// part is an engine's part of a path's price: it computes the prompt, or it gives the answer.
type part struct {
	engine  *Engine
	at      int     // its index in the role
	seconds float64 // until the prompt is computed, if it overtakes none; between tokens
	sooner  float64 // by how much sooner it is computed because it overtakes others. That is not in the price: these wait longer for it
	step    float64 // seconds of one, as the engine is now
	within  float64 // how likely that is within the objective
	streams float64
	gaps    float64
	room    float64
}

func (p *part) others() float64 { return p.streams + p.gaps + p.room }

// pricing is one choice by prices.
type pricing struct {
	q                       Request
	demand                  Demand
	pairs                   PairTimes
	prefillWork, decodeWork []Work
	objective               Objective
	answer                  float64 // tokens that are expected
	gap                     float64 // what a long gap counts
	held                    int     // tokens that one engine has of the prompt, if it has most of it
	room                    float64 // what a second counts in which an engine computes prompts

	computes []part // by prefill engines
	gives    []part // by decode engines

	best            Path // the lowest price so far
	prefill, decode int  // of that: indices in their roles, -1 if there is none
	move            moveOf
	told            *explainer
}

// pricedRole is how engines are chosen in explanations.
var pricedRole = &role{name: byCost}

var pricings = sync.Pool{New: func() any { return new(pricing) }}

// cheapest takes the path with the lowest price. reason is Split if the request may be split.
func (r *rule) cheapest(q *Request, f Fleet, d Draw, w why, reason Reason, told *explainer) Choice {
	p := pricings.Get().(*pricing)
	defer p.end()
	p.begin(q, &f, r.objective, told)
	told.begin("decode", pricedRole, f.Decode, "")
	decodes := r.decode.left(q, Draw{d.Turn, mix(d.Random)}, f.Decode, told)
	defer decodes.end()
	alone := !q.MustSplit || reason != Split
	if alone {
		p.hold(decodes)
	}
	var prefills *Candidates
	if reason == Split {
		told.begin("prefill", pricedRole, f.Prefill, "")
		prefills = r.prefill.left(q, d, f.Prefill, told)
		defer prefills.end()
		p.hold(prefills)
		if alone {
			p.priceAlone(decodes)
		}
		if !p.pricePairs(prefills, decodes, &f) {
			reason = missing(f)
		}
	} else if alone {
		p.priceAlone(decodes)
	}
	if len(p.move.all) > 0 && p.decode >= 0 {
		p.priceMoves(prefills, decodes, alone, &f)
	}
	c := Choice{Prefill: p.prefill, Decode: p.decode, Split: p.prefill >= 0, Reason: reason, why: w}
	switch {
	case r.reject && (reason == NoPrefill || reason == NoPair):
		c.Decode = -1
	case c.Decode < 0 && (reason == Split || decodes.Len() == 0):
		c.Reason = NoDecode
	case !c.Split && reason == Split:
		c.Reason = Cheaper
	}
	if c.Decode >= 0 {
		c.Move, c.Patience = p.moveTaken()
		c.TTFT, c.Breaks, c.why.price = float32(p.best.TTFT), float32(p.best.Missed+p.best.Streams), float32(p.best.Price)
		told.takePath()
	}
	return c
}

// left are the engines of a role that may be taken: those that filters leave, and of engines with less than a full part the one whose turn
// it is, or none.
func (r *role) left(q *Request, d Draw, engines []Engine, told *explainer) *Candidates {
	c := candidatesOf(q, d, engines, told, everyEngine)
	if c.applyAll(r.filters); c.Len() > 0 {
		if taken := c.takePart(false); taken >= 0 {
			c.keep = room(c.keep, len(c.at))
			clear(c.keep)
			c.keep[taken] = true
			c.retain(c.keep, "it was the turn of an engine with less than a full part")
		}
	}
	return c
}

// begin begins a choice.
func (p *pricing) begin(q *Request, f *Fleet, o Objective, told *explainer) {
	*p = pricing{q: *q, objective: q.Objective.or(o), computes: p.computes[:0], gives: p.gives[:0], prefill: -1, decode: -1, told: told}
	var works []Work
	if f.Forecast != nil {
		p.demand, p.pairs, p.prefillWork, p.decodeWork = f.Forecast.Demand, f.Forecast.Pairs, f.Forecast.Prefill, f.Forecast.Decode
		p.move.all = f.Forecast.Moves
		works = p.prefillWork
		if len(f.Prefill) == 0 {
			works = p.decodeWork
		}
	}
	p.answer = max(2, p.demand.Answer)
	p.gap = 1 / max(p.demand.LongGaps, LateTokens*p.answer) // an answer misses its objective by so many
	busy := 0.0                                             // of those that compute prompts
	for i := range works {
		busy += works[i].Prompts / float64(len(works))
	}
	p.room = p.demand.Rate / float64(max(1, len(works))) * busy * busy // requests for each, times how likely others are busy as well
}

// hold notes what engines that may compute the prompt have of it.
func (p *pricing) hold(c *Candidates) {
	for i := range c.Len() {
		if n := c.Engine(i).Cached; 2*n > p.q.PromptTokens {
			p.held = max(p.held, n)
		}
	}
}

func (p *pricing) end() {
	p.q, p.told, p.pairs, p.prefillWork, p.decodeWork, p.move, p.best.Move = Request{}, nil, nil, nil, nil, moveOf{}, nil
	clear(p.computes[:cap(p.computes)]) // they refer to engines
	clear(p.gives[:cap(p.gives)])
	pricings.Put(p)
}

// or fills what is not set from another.
func (o Objective) or(d Objective) Objective {
	if o.TTFT <= 0 {
		o.TTFT = d.TTFT
	}
	if o.ITL <= 0 {
		o.ITL = d.ITL
	}
	o.Tolerance, o.LateWeight = d.Tolerance, d.LateWeight
	return o
}

// itl is the mean time between tokens of streams at an engine, with more streams and tokens than it has: a step, as much longer as the engine
// is busy with prompts meanwhile.
func (w *Work) itl(streams, tokens int) float64 { return w.step(streams, tokens) / (1 - w.Prompts) }

// ITL is the mean time between tokens of the engine's streams, and what it is of one stream without any work beside it. Both are in seconds.
func (w *Work) ITL() (now, alone float64) {
	return w.itl(0, 0), w.Speed.Step[0] + w.Speed.Step[1]
}

// computing is the part of an engine that computes the prompt.
func (p *pricing) computing(e *Engine, w *Work, at int) part {
	reads, work := w.prompt(p.q.PromptTokens, max(1, p.q.PromptTokens-e.Cached))
	out := part{engine: e, at: at, seconds: max(w.Wait, reads) + work}
	out.sooner = out.seconds - work - max(w.wait(reads), reads)
	out.within = p.inTime(out.seconds)
	out.streams, out.gaps = p.harm(w, work)
	busy := p.objective.TTFT + p.demand.PromptFound // after that even requests that could wait the longest are late
	out.room = p.room * (min(busy, w.Wait+work) - min(busy, w.Wait))
	return out
}

// harm is what the engine's streams miss, and what their long gaps count, because it computes a prompt for so many seconds.
func (p *pricing) harm(w *Work, seconds float64) (streams, gaps float64) {
	if w.Streams == 0 {
		return 0, 0
	}
	itl := w.itl(0, 0) + w.Wait/p.answer
	return float64(w.Streams) * (p.keepsITL(itl) - p.keepsITL(itl+seconds/p.answer)), p.gap * float64(w.Streams) * p.longGaps(w, seconds)
}

// longGaps is how many long gaps a stream at the engine has while it computes a prompt for so many seconds. A prompt that is alone and fits into one
// step of the objective's length makes none, and any other at least one.
func (p *pricing) longGaps(w *Work, seconds float64) float64 {
	n := seconds * w.Speed.LongGaps
	switch {
	case w.Wait > 0:
		return n
	case w.step(0, 0)+seconds <= p.objective.ITL:
		return 0
	}
	return max(n, 1)
}

// giving is the part of a decode engine that gives the answer. wait is how long it has prompts to compute while it does.
func (p *pricing) giving(e *Engine, w *Work, at int, wait float64) part {
	out := part{engine: e, at: at, seconds: w.itl(1, p.q.PromptTokens) + wait/p.answer}
	out.step = w.step(0, 0)
	if w.Streams > 0 {
		itl := w.itl(0, 0) + w.Wait/p.answer
		longer := w.step(1, p.q.PromptTokens) - out.step
		out.streams = float64(w.Streams) * (p.keepsITL(itl) - p.keepsITL(itl+longer))
	}
	out.gaps = p.gap * (w.Prompts*p.answer*out.seconds + wait) * w.Speed.LongGaps
	if out.within = p.keepsITL(out.seconds); e.Out {
		out.within = 0 // the request is thought to fail
	}
	return out
}

func (p *pricing) inTime(ttft float64) float64 {
	return within(ttft, p.objective.TTFT, p.objective.Tolerance)
}

func (p *pricing) keepsITL(itl float64) float64 {
	return within(itl, p.objective.ITL, p.objective.Tolerance)
}

func (p *pricing) late(ttft float64) float64 { return p.objective.LateWeight * ttft / p.objective.TTFT }

// priceAlone prices the paths on which decode computes the prompt.
func (p *pricing) priceAlone(decodes *Candidates) {
	n := decodes.Len()
	for i := range n {
		i = turned(i, n, decodes.Draw.Turn)
		e, work := decodes.Engine(i), workOf(p.decodeWork, decodes.at[i])
		c, g := p.computing(e, work, decodes.at[i]), p.giving(e, work, decodes.at[i], 0)
		p.offer(nil, &g, &c, c.seconds, c.within)
	}
}

// pricePairs prices the paths on which a prefill engine computes the prompt. It returns false if no pair may be used.
func (p *pricing) pricePairs(prefills, decodes *Candidates, f *Fleet) bool {
	for i := range prefills.Len() {
		i = turned(i, prefills.Len(), prefills.Draw.Turn)
		p.computes = append(p.computes, p.computing(prefills.Engine(i), workOf(p.prefillWork, prefills.at[i]), prefills.at[i]))
	}
	for i := range decodes.Len() {
		i = turned(i, decodes.Len(), decodes.Draw.Turn)
		work := workOf(p.decodeWork, decodes.at[i])
		p.gives = append(p.gives, p.giving(decodes.Engine(i), work, decodes.at[i], work.Wait))
	}
	lowest := math.Inf(1) // what any decode engine adds to a price at least
	for i := range p.gives {
		lowest = min(lowest, p.gives[i].others()-p.gives[i].within)
	}
	any := false
	for i := range p.computes {
		c := &p.computes[i]
		least := c.others() + 1 + p.late(c.seconds)
		if any && p.told == nil && p.decode >= 0 && least+lowest >= p.best.Price {
			continue
		}
		for j := range p.gives {
			g := &p.gives[j]
			dear := any && p.decode >= 0 && least+g.others()-c.within*g.within >= p.best.Price // the transfer only adds to it
			if dear && p.told == nil || !f.pairable(c.at, g.at) {
				continue
			}
			any = true
			ttft := c.seconds + p.handOff(c, g)
			p.offer(c, g, c, ttft, p.inTime(ttft))
		}
	}
	return any
}

// handOff is how long the prompt's KV takes from one engine to another.
func (p *pricing) handOff(from, to *part) float64 {
	seconds := p.demand.MoveSeconds(max(0, p.q.PromptTokens-to.engine.Cached), to.step)
	if p.pairs != nil {
		seconds *= p.pairs.HandOff(from.at, to.at)
	}
	return seconds
}

// turned counts from another place in each turn, so that equals take turns.
func turned(i, n int, turn uint64) int { return int((uint64(i) + turn) % uint64(n)) }

// offer takes a path if its price is the lowest so far. prefill is nil if decode computes the prompt; either way computes is who does. inTime is how
// likely the first token is.
func (p *pricing) offer(prefill, decode, computes *part, ttft, inTime float64) {
	x := Path{Decode: decode.engine.Name, TTFT: ttft - computes.sooner, ITL: decode.seconds, Missed: 1 - inTime*decode.within, Streams: computes.streams + decode.streams,
		Gaps: computes.gaps + decode.gaps, Room: computes.room, Late: p.late(ttft)}
	x.Price = x.Missed + x.Streams + x.Gaps + x.Room + x.Late
	if m := p.move.now; m != nil {
		x.Move = m
		x.Away = max(m.differs, p.demand.Error) * x.Price
		x.Price += x.Away
	} else if computes.engine.Cached < p.held { // a conversation stays where it is, unless the gain is more than predictions differ from what becomes of them
		x.Away = p.demand.Error * x.Price
		x.Price += x.Away
	}
	if prefill != nil {
		x.Prefill = prefill.engine.Name
	}
	cheapest := p.decode < 0 || x.Price < p.best.Price && (x.Move == nil || ttft <= p.move.latest)
	p.told.path(x, cheapest)
	if !cheapest {
		return
	}
	p.best, p.prefill, p.decode, p.move.gives = x, -1, decode.at, decode.within
	if prefill != nil {
		p.prefill = prefill.at
	}
}
