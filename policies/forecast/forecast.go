// Package forecast knows how much the engines of a model have to do, and learns how fast they are: from what a gateway has sent to them and
// when tokens came back. The policy cost (package policies) prices paths by it. It reads no clock: each call takes the time, in seconds
// since any moment that is the same for all. It asks no engine. Package router/fleet tells it of legs, and so does bench/simulate of legs
// at modelled engines.
package forecast

import (
	"math"
	"slices"
	"sync"

	"pdrouter/policies"
)

// Engine is what is known of one engine. It is safe for concurrent use. NewEngine makes one.
type Engine struct {
	model *Model

	mu       sync.Mutex
	prompts  []*Leg  // whose prompts it has yet to compute, in the order in which it was given them
	began    float64 // when it could begin with the first of them
	streams  int
	context  int     // tokens that streams hold
	busy     decayed // seconds in which it computed prompts
	prompt   ratio   // seconds of its prompts, over what the model's engines take in the mean
	step     ratio   // likewise of its steps
	gaps     decayed // long gaps in streams
	stepped  decayed // seconds in which prompts were computed, times the streams that there were
	observed int     // tokens since the last observation of a step
}

// Leg is a request's part at one engine. Its methods are the engine's; the zero value is of a leg that has not begun.
type Leg struct {
	tokens  int     // that it holds
	terms   vector  // of the seconds that the prompt takes
	work    float64 // seconds in which it is thought to be computed
	at      float64 // when the leg began
	read    float64 // when the prompt is thought to be read
	answers bool    // it brings the answer
	silent  bool    // FirstToken is not called for it
	state   legState
}

type legState uint8

const (
	notBegun legState = iota
	computing
	streaming
	ended
)

// recent is how long what was counts, in seconds: by then it counts a third.
const recent = 20.0

// NewEngine returns an engine that has nothing to do. It is thought to be as fast as the model's other engines.
func (m *Model) NewEngine() *Engine {
	return &Engine{model: m}
}

// Begin notes that the engine is given a leg: a prompt of which it has to compute so many tokens, 0 if it receives the KV of all of them.
// answers says that the leg brings the answer, and not the KV for another engine; silent, that FirstToken will not be called: then its prompt
// is thought to be computed when it should be.
func (e *Engine) Begin(l *Leg, now float64, prompt, uncached int, answers, silent bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	*l = Leg{tokens: prompt, at: now, answers: answers, silent: silent}
	if uncached <= 0 {
		e.stream(l)
		return
	}
	l.state = computing
	l.terms = policies.PromptTerms(prompt, min(uncached, prompt), e.model.stepSeconds(e.streams, e.context)*e.step.value())
	reads, computes := e.model.promptSeconds(l.terms)
	l.read, l.work = now+reads*e.prompt.value(), computes*e.prompt.value()
	if len(e.prompts) == 0 {
		e.began = now
	}
	e.prompts = append(e.prompts, l)
	e.busy.add(now, l.work)
	e.stepped.add(now, l.work*float64(e.streams))
}

// FirstToken notes that the engine has computed a leg's prompt. It does nothing if it had none to compute, or has computed it before.
func (e *Engine) FirstToken(l *Leg, now float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	if l.state != computing {
		return
	}
	if e.prompts[0] == l {
		e.observe(l, now)
	}
	e.hasComputed(l, now)
}

// hasComputed notes that a leg's prompt is computed.
func (e *Engine) hasComputed(l *Leg, now float64) {
	e.remove(l, now)
	if l.answers {
		e.stream(l)
	} else {
		l.state = ended
	}
}

// settle notes that prompts are computed of which nobody will tell.
func (e *Engine) settle(now float64) {
	for len(e.prompts) > 0 && e.prompts[0].silent {
		l := e.prompts[0]
		at := max(e.began, l.read) + l.work
		if at > now {
			return
		}
		e.hasComputed(l, at)
	}
}

// Said notes tokens of a leg's answer: how many of them came evenly and the seconds before these, and how many gaps were longer than the
// request's objective. Tokens that came together behind such a gap are neither.
func (e *Engine) Said(l *Leg, now float64, tokens, even int, seconds float64, long int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.state != streaming {
		return
	}
	l.tokens += tokens
	e.context += tokens
	e.gaps.add(now, float64(long))
	e.model.said(now, tokens, long)
	if e.observed += tokens; even > 0 && seconds > 0 && e.observed >= observeEvery {
		e.observed = 0
		x := stepTerms(e.streams, e.context)
		e.model.learnStep(x, seconds/float64(even), &e.step)
	}
}

// observeEvery is after how many tokens of all streams the next observation of a step is taken in.
const observeEvery = 16

// End notes that the engine has no more to do for a leg. It does nothing for one that has not begun.
func (e *Engine) End(l *Leg, now float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	switch l.state {
	case computing:
		e.undo(l, now)
		e.remove(l, now)
	case streaming:
		e.streams--
		e.context -= l.tokens
	}
	l.state = ended
}

// Work is what the engine has to do at a time.
func (e *Engine) Work(now float64) policies.Work {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	return policies.Work{
		Wait: e.wait(now), Streams: e.streams, Context: e.context, Prompts: min(e.busy.at(now)/recent, .9),
		Speed: e.model.speed(e.prompt.value(), e.step.value(), e.longGaps(now)),
	}
}

// observe learns from the first of the prompts that are computed, which it has computed now.
func (e *Engine) observe(l *Leg, now float64) {
	x, from := l.terms, l.at
	switch {
	case e.began <= l.at: // nothing was before it
	case e.began >= l.read: // it was read meanwhile
		clear(x[:policies.ReadTerms])
		from = e.began
	default: // how much of the time it was read cannot be known
		return
	}
	if took := now - from; took > 0 {
		e.model.learnPrompt(x, took, &e.prompt)
	}
}

// Idle reports whether the engine has nothing to do, as far as is known.
func (e *Engine) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.prompts) == 0 && e.streams == 0 && e.context == 0
}

// wait is how long the prompts that it has will take. One that takes longer than it was thought to is thought to take as long again.
func (e *Engine) wait(now float64) float64 {
	free := now
	for i, l := range e.prompts {
		if i == 0 {
			free += math.Abs(max(e.began, l.read) + l.work - now)
		} else {
			free = max(free, l.read) + l.work
		}
	}
	return free - now
}

// longGaps is how many long gaps a stream has in a second in which prompts are computed beside it.
func (e *Engine) longGaps(now float64) float64 {
	const seconds, most = 1, 20 // what is thought before anything was seen, and what counts at most
	return min(most, (e.gaps.at(now)+firstLongGaps*seconds)/(e.stepped.at(now)+seconds))
}

// firstLongGaps is longGaps of an engine with steps of 2,048 tokens, of which none has been seen.
const firstLongGaps = 6

// undo takes back what of a prompt's work will not be done.
func (e *Engine) undo(l *Leg, now float64) {
	left := l.work
	if e.prompts[0] == l {
		left = min(left, max(0, max(e.began, l.read)+l.work-now))
	}
	e.busy.add(now, -min(left, e.busy.at(now)))
	e.stepped.add(now, -min(left*float64(e.streams), e.stepped.at(now)))
}

// remove removes a leg from those whose prompts are to be computed.
func (e *Engine) remove(l *Leg, now float64) {
	i := slices.Index(e.prompts, l)
	if i < 0 {
		return
	}
	e.prompts = slices.Delete(e.prompts, i, i+1)
	if i == 0 {
		e.began = now
	}
}

func (e *Engine) stream(l *Leg) {
	l.state = streaming
	e.streams++
	e.context += l.tokens
}

// ratio is a sum of times over a sum of what was expected, of which later ones count more. Without any it is 1.
type ratio struct{ took, expected float64 }

// ratioFades is what a time counts when the next one has come: the last twenty count most.
const ratioFades = .95

func (r *ratio) add(took, expected float64) {
	r.took, r.expected = ratioFades*r.took+took, ratioFades*r.expected+expected
}

func (r *ratio) value() float64 {
	if r.expected <= 0 {
		return 1
	}
	return r.took / r.expected
}

// decayed is a sum of which what is long ago counts less.
type decayed struct{ sum, last float64 }

func (d *decayed) at(now float64) float64 {
	if now <= d.last {
		return d.sum
	}
	return d.sum * math.Exp((d.last-now)/recent)
}

func (d *decayed) add(now, x float64) {
	d.sum = d.at(now) + x
	d.last = max(d.last, now)
}
