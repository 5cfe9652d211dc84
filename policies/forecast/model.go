package forecast

import (
	"math"
	"sync"

	"pdrouter/policies"
)

// Model is what the engines of one model have in common. It is safe for concurrent use. NewModel makes one.
type Model struct {
	mu       sync.Mutex
	prompt   fit
	step     fit
	move     fit     // seconds from prefill's end to decode's first token, by policies.MoveTerms
	arrivals decayed // requests
	answer   float64 // tokens of an answer, in the mean of recent ones
	tokens   decayed // of answers
	allowed  float64 // long gaps that there may be
	late     float64 // by how much times to the first token differ from what was predicted, in the mean of recent ones, as a part of the time
}

// What is thought of engines before anything was seen of any. It is soon of no importance.
var (
	firstPrompt = []float64{.02, 3e-6, 5e-5, 1e-9, 5e-4}
	firstStep   = []float64{.015, 1e-4, 3e-8}
	firstMove   = []float64{.002, 2e-6}
)

const (
	firstAnswer = 256 // tokens
	firstLate   = .2
	// Of all tokens, one in a hundred may come late. What is saved up is bounded: by mostAllowed, or by savedUp, whichever is more.
	longGapsAllowed = .01
	mostAllowed     = 100
	savedUp         = 3 // of what the tokens of the last 20 s allow
)

// NewModel returns a model of whose engines nothing is known.
func NewModel() *Model {
	return &Model{prompt: newFit(firstPrompt...), step: newFit(firstStep...), move: newFit(firstMove...), answer: firstAnswer, late: firstLate, allowed: mostAllowed / 2}
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
	m.answer += (max(1, float64(tokens)) - m.answer) / 32
}

// Moved notes the seconds between the end of a prompt on prefill and the first token from decode, which lacked so many of its tokens.
func (m *Model) Moved(tokens int, seconds float64) {
	if seconds <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := policies.MoveTerms(tokens)
	m.move.learnFrom(vector{t[0], t[1]}, seconds, &ratio{})
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
	m.mu.Lock()
	defer m.mu.Unlock()
	return policies.Demand{Rate: m.arrivals.at(now) / recent, Answer: m.answer, LongGaps: m.allowed, Error: m.late, Move: [2]float64(m.move.weights[:2])}
}

// promptSeconds is how long an engine reads and computes a prompt of these terms, in the mean of engines.
func (m *Model) promptSeconds(x vector) (reads, computes float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.prompt.of(x)
	clear(x[policies.ReadTerms:])
	reads = m.prompt.of(x)
	return reads, all - reads
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
	most := max(mostAllowed, savedUp*longGapsAllowed*m.tokens.at(now))
	m.allowed = max(-most/10, min(most, m.allowed+longGapsAllowed*float64(tokens)-float64(long)))
}
