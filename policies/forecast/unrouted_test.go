package forecast

import (
	"testing"

	"pdrouter/policies"
)

// TestUnrouted: what an engine has that no gateway has sent adds to its work until the report is old, and not to what this gateway says of its own.
func TestUnrouted(t *testing.T) {
	m := scripted()
	e := m.NewEngine()
	answer := Leg{Prompt: 200, Answers: true}
	e.Begin(&answer, 10)
	usual := m.usualSeconds()
	e.SetUnrouted(Unrouted{Prompts: 4, Streams: 6, Context: 3000}, 10, 2)
	for _, row := range []struct {
		at, counts float64
		streams    int
	}{{10, 1, 7}, {12, 1, 7}, {13, .5, 4}, {14, 0, 1}, {100, 0, 1}} {
		w := e.Work(row.at)
		if !near(w.Wait, row.counts*4*usual, .01) || w.Streams != row.streams || !near(float64(w.Context), 200+row.counts*3000, .01) {
			t.Errorf("at %v: %+v; want %v of it", row.at, w, row.counts)
		}
		if o := e.ForUnrouted(row.at); !near(o.Wait, row.counts*4*usual, .01) || o.Streams != row.streams-1 {
			t.Errorf("at %v: %+v", row.at, o)
		}
		if o := e.Own(row.at); o.Wait != 0 || o.Streams != 1 || o.Context != 200 {
			t.Errorf("own %+v", o)
		}
	}
	if streams, context := e.Gateways(); streams != 1 || context != 200 {
		t.Errorf("gateways have %d streams of %d tokens", streams, context)
	}
}

// TestUnroutedPrompts: the part of the time in which an engine computes others' prompts is what it has computed beyond what gateways have sent, and
// counts while it has requests that none has sent.
func TestUnroutedPrompts(t *testing.T) {
	m := scripted()
	e := m.NewEngine()
	l := Leg{Prompt: 1000, Uncached: 1000}
	e.Begin(&l, 0)
	took := e.Work(0).Wait
	e.FirstToken(&l, took)
	e.End(&l, took)
	each := 1000 / took // tokens in a second
	say := func(from, to int, part float64, requests int) (tokens float64) {
		for at := from; at <= to; at += 2 {
			tokens = each * part * float64(at)
			e.Computed(float64(at), 2, tokens)
			e.SetUnrouted(Unrouted{Streams: requests}, float64(at), 2)
		}
		return tokens
	}
	say(2, 100, .3, 2)
	if w := e.Work(100); w.Prompts < .25 || w.Prompts > .35 {
		t.Errorf("it computes prompts in %.2f of its time; want .3", w.Prompts)
	}
	if g := e.Given(100); g < .25 || g > .35 {
		t.Errorf("it is given %.2f seconds of prompts each second; want .3", g)
	}
	e.SetOthers(Others{Prompts: .3})
	if w := e.Work(100); !near(w.Prompts, .3, .1) {
		t.Errorf("another gateway has sent them: %.2f; want .3", w.Prompts)
	}
	e.SetOthers(Others{})
	e.SetUnrouted(Unrouted{}, 100, 2)
	if w := e.Work(100); w.Prompts > .02 {
		t.Errorf("without such requests: %.2f", w.Prompts)
	}
	e.SetUnrouted(Unrouted{Streams: 2}, 100, 2)
	before := e.Work(100).Prompts
	e.Computed(102, 2, 10) // another run
	e.Computed(104, 2, -1)
	e.Computed(106, 2, 1e9)  // it says so again
	e.Computed(200, 2, 1e12) // after a long time
	e.SetUnrouted(Unrouted{Streams: 2}, 200, 2)
	if w := e.Work(200); w.Prompts > before/10 {
		t.Errorf("%.3f; %.3f before a restart and a pause", w.Prompts, before)
	}
}

// TestUnroutedTeachNothing: an engine that others use too is not taken for a slow one, by streams or by whole answers.
func TestUnroutedTeachNothing(t *testing.T) {
	for name, silent := range map[string]bool{"streams": false, "whole answers": true} {
		t.Run(name, func(t *testing.T) { unroutedTeachNothing(t, silent) })
	}
}

// unroutedTeachNothing has an engine's steps take as long as with 200 streams of 1,000 tokens. It computes others' prompts half of the time.
func unroutedTeachNothing(t *testing.T, silent bool) {
	m := NewModel()
	e := m.NewEngine()
	const among = .015 + 201*1e-4 + 201_000*3e-8 // seconds of a step
	speed := func() (prompt, step float64) {
		e.SetUnrouted(Unrouted{}, 0, 2)
		w := e.Work(1e6)
		for i, x := range policies.PromptTerms(1000, 1000, among) {
			prompt += x * w.Speed.Prompt[i]
		}
		_, step = w.ITL()
		return prompt, step
	}
	firstPrompt, firstStep := speed()
	each := .5 * m.usualPrompt() / m.usualSeconds() // tokens in a second
	e.Computed(0, 10, 0)
	for i := range 400 {
		now := float64(5 * (i + 1))
		e.Computed(now, 10, now*each)
		e.SetUnrouted(Unrouted{Streams: 200, Context: 200_000}, now, 10)
		l := Leg{Prompt: 1000, Uncached: 1000, Answers: true, Silent: silent, Late: 1}
		e.Begin(&l, now)
		now += 2 * firstPrompt
		switch {
		case silent:
			now += 64 * among * 2 // its steps, and the prompts between them
			e.Whole(&l, now, 65)
		default:
			e.FirstToken(&l, now)
			for range 64 {
				now += among
				e.Said(&l, now, 1)
			}
		}
		e.End(&l, now)
	}
	prompt, step := speed()
	if prompt > 1.3*firstPrompt || prompt < firstPrompt/1.3 {
		t.Errorf("a prompt takes %.3f s; %.3f s before", prompt, firstPrompt)
	}
	if step > 1.2*firstStep {
		t.Errorf("a step takes %.4f s; %.4f s before", step, firstStep)
	}
}
