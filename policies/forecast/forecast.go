// Package forecast knows how much the engines of a model have to do, and learns how fast they are: from what a gateway has sent to them and
// when tokens came back, whatever the policy is. The policy cost (package policies) prices paths by it. It reads no clock: each call takes
// the time, in seconds since any moment that is the same for all. It asks no engine. Package router/fleet tells it of legs, and so does
// bench/simulate of legs at modelled engines.
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
	prompts  []*Leg  // whose prompts it has yet to compute, in the order in which it is thought to read them
	began    float64 // when it could begin with the first of them
	streams  int
	context  int      // tokens that streams hold
	busy     decayed  // seconds in which it computed prompts
	rested   decayed  // busy as it was when the first of prompts came that it has, or had last
	prompt   pace     // seconds of its prompts, over what the model's engines take in the mean
	step     pace     // likewise of its steps
	gaps     ratio    // long gaps in streams, over the seconds of these: each is a step with a part of a prompt
	carried  computed // prompts that were computed in much less time than they should have been
	observed int      // tokens since the last observation of a step
	others   Others   // what other gateways have there
	unrouted unrouted // what it has that no gateway has sent
	now      float64  // when it was told of something last
	given    float64  // seconds of all prompts that it was given

	ends [transferKinds]ends // each is guarded by the model's transfers of the kind
	gone bool                // it is of no configuration any more; guarded by both
}

// computed is how long prompts took to compute, together.
type computed struct {
	terms   vector
	seconds float64
}

// recent is how long what was counts.
const recent = policies.Recent

// NewEngine returns an engine that has nothing to do. It is thought to be as fast as the model's other engines.
func (m *Model) NewEngine() *Engine {
	return &Engine{model: m, gaps: ratio{firstLongGaps, 1}, unrouted: unrouted{computed: -1}}
}

// Begin notes that the engine is given a leg.
func (e *Engine) Begin(l *Leg, now float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	l.tokens, l.at = l.Prompt, now
	if l.Uncached <= 0 {
		e.stream(l)
		return
	}
	l.state = computing
	l.terms = policies.PromptTerms(l.Prompt, min(l.Uncached, l.Prompt), e.stepSecondsLocked())
	l.alone = e.beside().Wait == 0
	reads, computes := e.model.given(l.terms)
	l.read, l.work = now+reads*e.prompt.value(), computes*e.prompt.value()
	if len(e.prompts) == 0 {
		e.began, e.rested = now, decayed{e.busy.at(now), now}
	}
	all, soon, reading := e.waits(now)
	if l.ahead = all; reads*e.prompt.value() < reading {
		l.ahead = soon
	}
	e.given += l.work
	l.given = e.given
	at, _ := slices.BinarySearchFunc(e.prompts, l.read, func(o *Leg, read float64) int { // after those that are read at the same time
		if o.read <= read {
			return -1
		}
		return 1
	})
	e.prompts = slices.Insert(e.prompts, at, l)
	e.busy.add(now, l.work)
}

// stepSecondsLocked is StepSeconds.
func (e *Engine) stepSecondsLocked() float64 {
	o := e.beside()
	return e.model.stepSeconds(e.streams+o.Streams, e.context+o.Context) * e.step.value()
}

// StepSeconds is how long a step is thought to take now that gives each stream a token.
func (e *Engine) StepSeconds() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stepSecondsLocked()
}

// Counted notes how many tokens of a leg's prompt the engine says it had cached, where nobody knew before: what is learned from the leg goes by that.
// It is called before FirstToken.
func (e *Engine) Counted(l *Leg, cached int) {
	if l.Prompt <= 0 {
		return
	}
	uncached := max(1, min(l.Prompt-cached, l.Prompt))
	e.mu.Lock()
	l.terms = policies.PromptTerms(l.Prompt, uncached, l.terms[underWay])
	e.mu.Unlock()
	e.model.counted(float64(uncached) / float64(l.Prompt))
}

// FirstToken notes that the engine has computed a leg's prompt. It does nothing if it had none to compute, or has computed it before.
func (e *Engine) FirstToken(l *Leg, now float64) {
	l.last, l.started = now, true
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	if l.state != computing {
		return
	}
	e.note(l)
	if e.prompts[0] == l {
		e.observe(l, now)
	} else {
		e.prompts[0].passed = true
	}
	e.hasComputed(l, now)
}

// Whole notes that a leg's answer of so many tokens has come at once. Nothing is learned from it if other prompts took most of the
// time, or other gateways' did.
func (e *Engine) Whole(l *Leg, now float64, tokens int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	o := e.beside()
	if !l.Silent || l.Uncached <= 0 || l.state == ended || tokens < 1 {
		return
	}
	if e.note(l); !l.alone || o.Wait > 0 {
		return
	}
	reads := l.read - l.at
	seconds := (now - l.at) * (1 - e.forUnrouted().Prompts) // in the rest it computed prompts that no gateway has sent
	own := seconds - max(0, l.ahead-reads) - (e.given - l.given)
	if own <= 0 || own < seconds/2 {
		return
	}
	streams, context := max(1, e.streams+o.Streams), e.context+o.Context
	x := stepTerms(streams, context)
	prompt, step := e.model.wholeSeconds(l.terms, x)
	own = max(own, (prompt*e.prompt.atMostUsual()+float64(tokens-1)*step*e.step.atMostUsual())/2) // as in fit.learnFrom: also where an engine claims more tokens than it can have given
	prompt, step = e.model.learnWhole(l.terms, x, tokens-1, own)
	part := own / (prompt + float64(tokens-1)*step)
	e.prompt.add(part*prompt, prompt)
	e.prompt.seen = now
	if tokens > 1 {
		e.step.add(part*step, step)
		e.step.seen = now
	}
}

// note tells the model that a leg's prompt is computed. One that the engine refuses, as it is too long for it, is none.
func (e *Engine) note(l *Leg) {
	if !l.noted {
		l.noted = true
		e.model.hasComputed(l.terms)
	}
}

// hasComputed notes that a leg's prompt is computed.
func (e *Engine) hasComputed(l *Leg, now float64) {
	e.note(l)
	e.remove(l, now)
	if took := max(0, now-e.rested.last); len(e.prompts) == 0 {
		// It was not busy for longer. Else an engine that was slow once, as it warmed up, would look busy for long, by what the next prompts were thought to take.
		if over := e.busy.at(now) - e.rested.at(now) - took; over > took {
			e.busy.add(now, -over)
		}
	}
	if l.Answers {
		e.stream(l)
	} else {
		l.state = ended
	}
}

// forgetAfter is after how many seconds without an observation an engine is thought to be as fast as others again. Else one that was slow once, as
// it warmed up, would be given nothing any more by which it could show that it is not. Prompts and steps are forgotten apart: an engine whose prompts
// look slow may give answers all the time to prompts that others compute.
const forgetAfter = 120

// settle notes that prompts are computed of which nobody will tell, and forgets what was long ago.
func (e *Engine) settle(now float64) {
	e.now = now
	e.prompt.forget(now, forgetAfter)
	e.step.forget(now, forgetAfter)
	for len(e.prompts) > 0 && e.prompts[0].Silent {
		l := e.prompts[0]
		at := max(e.began, l.read) + l.work
		if at > now {
			return
		}
		e.hasComputed(l, at)
	}
}

// End notes that the engine has no more to do for a leg. It does nothing for one that has not begun.
func (e *Engine) End(l *Leg, now float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	if l.said.tokens > 0 {
		e.tell(l, now)
	}
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
	o := e.beside()
	all, soon, reading := e.waits(now)
	return policies.Work{
		Wait: all + o.Wait, Soon: soon + o.Wait, Reading: reading, Streams: e.streams + o.Streams, Context: e.context + o.Context,
		Prompts: min(e.busy.at(now)/recent+o.Prompts, mostPrompts),
		Speed:   e.model.speed(e.prompt.value(), e.step.value(), e.gaps.value()),
	}
}

// PromptSeconds is how long the engine is thought to compute a prompt beside the streams that it has, if nothing waits before it.
func (e *Engine) PromptSeconds(prompt, uncached int) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := policies.PromptTerms(prompt, max(1, min(uncached, prompt)), e.stepSecondsLocked())
	return e.model.promptSeconds(x) * e.prompt.value()
}

// Given is how many seconds of prompts the engine was given lately for each second: above 1, more than it can compute.
func (e *Engine) Given(now float64) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settle(now)
	return e.busy.at(now)/recent + e.beside().Prompts
}

// Observed is how many seconds ago it was seen for the last time how fast the engine is; ever is false if it never was.
func (e *Engine) Observed(now float64) (ago float64, ever bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := max(e.prompt.seen, e.step.seen)
	return max(0, now-seen), seen > 0
}

// observe learns from the first of the prompts that are computed, which it has computed now. Where others have prompts that wait too, it cannot be
// known which of them the engine computed first.
func (e *Engine) observe(l *Leg, now float64) {
	x, from := l.terms, l.at
	switch {
	case !l.alone || l.passed || e.beside().Wait > 0:
		return
	case e.began <= l.at: // nothing was before it
	case e.began >= l.read: // it was read meanwhile
		clear(x[:policies.ReadTerms])
		from = e.began
	default: // how much of the time it was read cannot be known
		return
	}
	took := (now-from)*(1-e.forUnrouted().Prompts) + e.carried.seconds // in the rest it computed prompts that no gateway has sent
	for i := range x {
		x[i] += e.carried.terms[i]
	}
	// The last parts of several prompts may be computed in one step, and seem to take no time but for the first. So those are taken together with the next.
	if e.carried.terms == (vector{}) && took < e.model.promptSeconds(x)*e.prompt.value()/2 {
		e.carried = computed{x, took}
		return
	}
	if e.carried = (computed{}); took > 0 {
		e.prompt.seen = now
		e.model.learnPrompt(x, took, &e.prompt.ratio)
	}
}

// Idle reports whether the engine has nothing to do, as far as is known.
func (e *Engine) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.prompts) == 0 && e.streams == 0 && e.context == 0
}

// waits is how long the prompts that it has will take: all of them, and those that it has read. reading is how long it takes until it has read the
// first of the others, which prompts that it reads sooner overtake; 0 if there are none. A prompt that takes longer than it was thought to is thought to
// take as long again.
func (e *Engine) waits(now float64) (all, soon, reading float64) {
	free := now
	for i, l := range e.prompts {
		if l.read > now && reading == 0 {
			soon, reading = free-now, l.read-now
		}
		if i == 0 {
			free += math.Abs(max(e.began, l.read) + l.work - now)
		} else {
			free = max(free, l.read) + l.work
		}
	}
	if all = free - now; reading == 0 {
		soon = all
	}
	return all, soon, reading
}

// firstLongGaps is how many long gaps an engine is thought to make in a second before any was seen: as many as steps of 2,048 tokens of a large model.
const firstLongGaps = 6

// undo takes back what of a prompt's work will not be done.
func (e *Engine) undo(l *Leg, now float64) {
	left := l.work
	if e.prompts[0] == l {
		left = min(left, max(0, max(e.began, l.read)+l.work-now))
	}
	e.busy.add(now, -min(left, e.busy.at(now)))
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
