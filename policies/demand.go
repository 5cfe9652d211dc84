package policies

import "math"

// Work is what an engine has to do, and how fast it is, as package forecast knows it. Times are in seconds. The policy cost prices by it.
type Work struct {
	Wait    float64 // until it has computed the prompts that it was given
	Soon    float64 // likewise those of them that it has read
	Reading float64 // until it has read the first of the others: a prompt that it reads sooner waits for Soon alone. 0: there are none
	Streams int     // answers that it gives or is to give
	Context int     // tokens that these hold
	Prompts float64 // the part of its time in which it computed prompts, 0 to 0.9, as of Recent
	Speed   Speed
}

// Recent is how long what an engine did counts, in seconds: by then it counts a third.
const Recent = 20.

// Speed is how fast an engine is.
type Speed struct {
	Prompt [6]float64 // seconds for each of PromptTerms
	Step   [3]float64 // seconds for each of StepTerms
	// LongGaps is how many gaps longer than the objective a stream has in a second in which prompts are computed beside it.
	LongGaps float64
}

// Forecast is what is predicted of a model's engines: of each of Fleet.Prefill and Fleet.Decode, and of all.
type Forecast struct {
	Prefill, Decode []Work
	Demand          Demand
	Pairs           PairTimes // nil: all pairs take as long
	Moves           []Move    // that can come before this request
}

// PairTimes tells how long pairs take. It is asked several times per choice and does not block.
type PairTimes interface {
	// HandOff is how many times as long as in the mean a hand-off takes from Fleet.Prefill[p] to Fleet.Decode[d].
	HandOff(p, d int) float64
}

// unknown stands for an engine that no forecast is about.
var unknown Work

// workOf returns an engine's work.
func workOf(role []Work, at int) *Work {
	if at >= len(role) {
		return &unknown
	}
	return &role[at]
}

// Demand is what is asked of a model's engines.
type Demand struct {
	Rate   float64 // requests a second, recently
	Answer float64 // tokens of an answer, in the mean
	// PromptFound is how many seconds the prompt takes that a request finds under way at a busy engine: long ones are found more often.
	PromptFound float64
	LongGaps    float64    // gaps longer than the objective that there may be before more than one token in a hundred comes late
	Error       float64    // by which part times to the first token differ from what was predicted, in the mean
	Move        [3]float64 // seconds for each of MoveTerms
}

// ReadTerms are how many of PromptTerms are of the time in which an engine reads a prompt: it computes others meanwhile.
const ReadTerms = 3

// PromptTerms are what the time of a prompt is made of. First what it takes until the engine can begin with it: a constant, all its tokens, as they
// are read, and a step, of step seconds, that is under way. Then tokens that are computed, pairs of these with tokens before them, and steps that
// streams have meanwhile.
func PromptTerms(prompt, uncached int, step float64) [6]float64 {
	n, before := float64(uncached), float64(prompt-uncached)
	return [6]float64{1, float64(prompt), step, n, n*before + n*n/2, n * step}
}

// StepTerms are what the time of a step is made of that gives each stream a token: a constant, streams, and tokens that these hold.
func StepTerms(streams, context int) [3]float64 {
	return [3]float64{1, float64(streams), float64(context)}
}

// MoveTerms are what the time is made of from the end of a prompt on prefill to the first token from decode: a constant, tokens whose KV is moved,
// and steps of decode, which take step seconds.
func MoveTerms(tokens int, step float64) [3]float64 { return [3]float64{1, float64(tokens), step} }

func (w *Work) step(streams, tokens int) float64 {
	t := StepTerms(w.Streams+streams, w.Context+tokens)
	return t[0]*w.Speed.Step[0] + t[1]*w.Speed.Step[1] + t[2]*w.Speed.Step[2]
}

// prompt is how long the engine reads a prompt, and how long it computes it.
func (w *Work) prompt(prompt, uncached int) (reads, computes float64) {
	t := PromptTerms(prompt, uncached, w.step(0, 0))
	for i := range t {
		if x := t[i] * w.Speed.Prompt[i]; i < ReadTerms {
			reads += x
		} else {
			computes += x
		}
	}
	return reads, computes
}

// wait is how long a prompt waits for others that the engine computes before it, if it takes so many seconds to read it.
func (w *Work) wait(reads float64) float64 {
	if reads < w.Reading {
		return w.Soon
	}
	return w.Wait
}

// MoveSeconds is how long a hand-off of so many tokens to an engine with such steps takes, in the mean of pairs.
func (d *Demand) MoveSeconds(tokens int, step float64) float64 {
	t := MoveTerms(tokens, step)
	return t[0]*d.Move[0] + t[1]*d.Move[1] + t[2]*d.Move[2]
}

// within is how likely a predicted time is to be within an objective, if it may be wrong by a part of that.
func within(seconds, objective, part float64) float64 {
	return 1 / (1 + math.Exp((seconds-objective)/(part*objective)))
}
