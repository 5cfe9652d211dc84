package forecast

import "math"

// Unrouted are the requests that an engine reports beyond those that gateways have sent there: those of clients and routers that ask it directly.
type Unrouted struct {
	Prompts int // requests whose prompts wait to be computed
	Streams int // all others
	Context int // tokens that those hold
}

// Requests is how many there are.
func (u Unrouted) Requests() int { return u.Prompts + u.Streams }

// unrouted is Unrouted as it was reported last.
type unrouted struct {
	Unrouted
	at, due  float64 // when it was reported, and how many seconds later the next report is due
	wait     float64 // seconds that the engine is thought to take for the prompts
	computed float64 // tokens of all prompts since the engine's start; below 0 if it does not say
	seen     float64 // when it has said that
	busy     decayed // seconds in which it computed prompts, those that gateways have sent too
}

// Counts is how much a report counts that is so many seconds old: fully until the next one is due, and not at all when two are.
func Counts(age, due float64) float64 {
	if due <= 0 {
		return 0
	}
	return max(0, min(1, 2-age/due))
}

// SetUnrouted notes what the engine was found to have beyond what gateways know of, by a report at a time after which the next is due so many seconds
// later. It holds until the next call, and fades when the next report is late.
func (e *Engine) SetUnrouted(u Unrouted, at, due float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait := 0.
	if u.Prompts > 0 {
		wait = float64(u.Prompts) * e.model.usualSeconds() * e.prompt.value()
	}
	e.unrouted.Unrouted, e.unrouted.at, e.unrouted.due, e.unrouted.wait = u, at, due, wait
}

// Computed notes how many tokens of prompts the engine says that it has computed since its start, for whomever; below 0 if it does not say. The next
// such report is due so many seconds later.
func (e *Engine) Computed(now, due, tokens float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := &e.unrouted
	if u.computed >= 0 && tokens > u.computed && now-u.seen <= 2*due { // else it is another run, or nobody knows when they were computed
		usual := e.model.usualPrompt()
		u.busy.add(now, (tokens-u.computed)*e.model.usualSeconds()/usual*e.prompt.value())
	}
	u.computed, u.seen = tokens, now
}

// UsualPrompt is how many tokens of a prompt the engines of its model compute usually.
func (e *Engine) UsualPrompt() int { return e.model.UsualPrompt() }

// ForUnrouted is the part of the engine's work that is for unrouted requests.
func (e *Engine) ForUnrouted(now float64) Others {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	return e.forUnrouted()
}

// forUnrouted is ForUnrouted at the time of the latest settle.
func (e *Engine) forUnrouted() Others {
	u := &e.unrouted
	if u.Requests() == 0 {
		return Others{}
	}
	counts := Counts(e.now-u.at, u.due)
	if counts == 0 {
		return Others{}
	}
	sent := e.busy.at(e.now)/recent + e.others.Prompts
	return Others{
		Wait: counts * u.wait, Streams: int(math.Round(counts * float64(u.Streams))), Context: int(counts * float64(u.Context)),
		Prompts: counts * min(mostPrompts, max(0, u.busy.at(e.now)/recent-sent)),
	}
}

// beside is what the engine has to do beside this gateway's requests, at the time of the latest settle.
func (e *Engine) beside() Others {
	o, u := e.others, e.forUnrouted()
	return Others{Wait: o.Wait + u.Wait, Streams: o.Streams + u.Streams, Context: o.Context + u.Context, Prompts: o.Prompts + u.Prompts}
}

// mostPrompts is the largest part of its time in which an engine is thought to compute prompts.
const mostPrompts = .9
