package forecast

import (
	"math"
	"sync"

	"pdrouter/policies"
)

// Model is what the engines of one model have in common. It is safe for concurrent use. NewModel makes one.
type Model struct {
	mu         sync.Mutex
	prompt     fit
	step       fit
	arrivals   decayed // requests
	answer     float64 // tokens of an answer, in the mean of recent ones
	tokens     decayed // of answers
	computes   float64 // seconds of a prompt, in the mean of recent ones and of 0, which counts less the more there were
	squares    float64 // of these, likewise
	computed   float64 // what the prompts count in computes
	usual      float64 // tokens of a prompt that an engine computes, in the mean of recent ones
	uncached   float64 // the part of a prompt that engines compute, in the mean of recent ones of which nobody knew before
	allowed    float64 // long gaps that there may be
	othersRate float64 // requests a second that other gateways are sent
	late       float64 // by how much times to the first token differ from what was predicted, in the mean of recent ones, as a part of the time
	astray     float64 // by how much moves of conversations differed from what was predicted, in the mean of recent ones, as a part of the time

	handOffs, migrations transfers
}

// What is thought of engines before anything was seen of any. It is soon of no importance.
var (
	firstPrompt = []float64{.005, 3e-6, 1, 5e-5, 1e-9, 5e-4}
	firstStep   = []float64{.015, 1e-4, 3e-8}
	firstMove   = []float64{.002, 2e-6, 1.5}
	// Two requests, each with a step of its own, and a transfer that waits for the first.
	firstMigration = []float64{.02, 5e-6, 2}
)

const (
	// underWay is the place in policies.PromptTerms of the step that is under way when a prompt comes. It lasts a step whatever the engine is, so its
	// weight of 1 is no guess: it counts as sure, as much as an observation in which nothing else took time. Left to the fit, it would explain what
	// prompts and steps take otherwise, above all where all prompts are as long.
	underWay = 2
	sure     = 1

	firstAnswer = 256     // tokens
	firstUsual  = 1000    // tokens of a prompt
	mostAnswer  = 1 << 16 // tokens that an answer counts for at most: engines claim what they like
	firstLate   = .2
	firstAstray = .5
	// What is saved up of late tokens, or owed, is bounded: by mostAllowed, or by savedUp, whichever is more.
	mostAllowed = 100
	savedUp     = 3 // of what the tokens of the last 20 s allow
)

// NewModel returns a model of whose engines nothing is known.
func NewModel() *Model {
	m := &Model{prompt: newFit(firstPrompt...), step: newFit(firstStep...), answer: firstAnswer, usual: firstUsual, uncached: 1, late: firstLate, allowed: mostAllowed / 4, astray: firstAstray,
		handOffs: newTransfers(handOff, firstMove), migrations: newTransfers(migration, firstMigration)}
	m.prompt.trusts[underWay] = sure
	m.prompt.beside, m.step.beside = &m.step, &m.prompt
	return m
}

// Arrived notes that a request is given to engines.
func (m *Model) Arrived(now float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrivals.add(now, 1)
}

// Answered notes an answer of so many tokens.
func (m *Model) Answered(tokens int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer += (min(mostAnswer, max(1, float64(tokens))) - m.answer) / 32
}

// Predicted notes the time to a first token, and what had been predicted, in seconds.
func (m *Model) Predicted(predicted, was float64) {
	if predicted <= 0 || was <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late += (min(1, math.Abs(predicted-was)/was) - m.late) / 32
}

// Demand is what is asked of the engines at a time.
func (m *Model) Demand(now float64) policies.Demand {
	m.handOffs.forget(now)
	m.migrations.forget(now)
	move := m.handOffs.terms()
	m.mu.Lock()
	defer m.mu.Unlock()
	return policies.Demand{Rate: m.arrivals.at(now)/recent + m.othersRate, Answer: m.answer, PromptFound: m.squares / max(m.computes, 1e-9), LongGaps: m.allowed, Error: m.late, Move: move}
}

// counted notes the part of a prompt that an engine says it has computed.
func (m *Model) counted(uncached float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uncached += (uncached - m.uncached) / 32
}

// Uncached is how many tokens of a prompt an engine is thought to compute where nobody knows what it has cached.
func (m *Model) Uncached(prompt int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(1, int(m.uncached*float64(prompt)))
}

// PromptSeconds is how long an engine computes a prompt, in the mean of recent ones; 0 before the first.
func (m *Model) PromptSeconds() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.computes / max(m.computed, 1e-9)
}

// given is how long an engine reads and computes a prompt of these terms that it is given, in the mean of engines.
func (m *Model) given(x vector) (reads, computes float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.prompt.of(x)
	clear(x[policies.ReadTerms:])
	reads = m.prompt.of(x)
	return reads, all - reads
}

// hasComputed notes that an engine has computed a prompt of these terms.
func (m *Model) hasComputed(x vector) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(x[:policies.ReadTerms])
	computes, tokens := m.prompt.of(x), x[policies.ReadTerms]
	m.computes += (computes - m.computes) / 128
	m.squares += (computes*computes - m.squares) / 128
	m.computed += (1 - m.computed) / 128
	m.usual += (tokens - m.usual) / 32
	m.prompt.unsure = m.computes / m.computed // what the engine does beside a prompt, and what it has lost of its cache, take as long whatever the prompt is
}

// ComputeSeconds is how long an engine without streams computes a prompt of so many tokens none of which it has, in the mean of engines.
func (m *Model) ComputeSeconds(tokens int) float64 {
	x := policies.PromptTerms(tokens, tokens, m.stepSeconds(0, 0))
	clear(x[:policies.ReadTerms])
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.prompt.of(x)
}

// usualPrompt is how many tokens of a prompt an engine computes, in the mean of recent ones.
func (m *Model) usualPrompt() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(1, m.usual)
}

// UsualPrompt is how many tokens of a prompt an engine computes usually.
func (m *Model) UsualPrompt() int { return int(m.usualPrompt()) }

// usualSeconds is how long such a prompt takes, at an engine without streams.
func (m *Model) usualSeconds() float64 { return m.ComputeSeconds(m.UsualPrompt()) }

func (m *Model) promptSeconds(x vector) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.prompt.of(x)
}

func (m *Model) stepSeconds(streams, context int) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step.of(stepTerms(streams, context))
}

// learnPrompt takes in how long a prompt took at an engine, into its ratio too.
func (m *Model) learnPrompt(x vector, seconds float64, of *ratio) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prompt.learnFrom(x, seconds, of)
}

// learnStep takes in how long a step took at an engine, into its ratio too.
func (m *Model) learnStep(x vector, seconds float64, of *ratio) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.step.learnFrom(x, seconds, of)
}

// wholeSeconds is how long a prompt and each step after it take, in the mean of engines.
func (m *Model) wholeSeconds(prompt, step vector) (prompts, steps float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.prompt.of(prompt), m.step.of(step)
}

// learnWhole takes in how long a prompt and so many steps took together. It returns what is expected now of the prompt, and of each step.
func (m *Model) learnWhole(prompt, step vector, steps int, seconds float64) (prompts, each float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := step
	for i := range all {
		all[i] *= float64(steps)
	}
	m.prompt.learn(prompt, all, seconds)
	if steps > 0 {
		m.step.learn(all, prompt, seconds)
	}
	return m.prompt.of(prompt), m.step.of(step)
}

// speed is that of an engine whose prompts and steps take so many times as long as those of engines in the mean.
func (m *Model) speed(prompt, step, longGaps float64) policies.Speed {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := policies.Speed{LongGaps: longGaps}
	for i := range s.Prompt {
		s.Prompt[i] = prompt * m.prompt.weights[i]
	}
	for i := range s.Step {
		s.Step[i] = step * m.step.weights[i]
	}
	return s
}

func stepTerms(streams, context int) vector {
	t := policies.StepTerms(streams, context)
	return vector{t[0], t[1], t[2]}
}

func (m *Model) said(now float64, tokens, long int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens.add(now, float64(tokens))
	most := max(mostAllowed, savedUp*policies.LateTokens*m.tokens.at(now))
	m.allowed = max(-most, min(most, m.allowed+policies.LateTokens*float64(tokens)-float64(long)))
}
