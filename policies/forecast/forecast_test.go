package forecast

import (
	"math"
	"math/rand/v2"
	"testing"

	"pdrouter/policies"
)

// near reports whether two numbers differ by less than a part.
func near(got, want, part float64) bool { return math.Abs(got-want) <= part*math.Abs(want)+1e-9 }

// TestFit finds weights again, also where one is 0, from observations with noise.
func TestFit(t *testing.T) {
	for _, want := range []vector{{.01, 1e-5, 8e-5, 1e-9}, {.02, 0, 8e-5, 0}} {
		f := newFit(.02, 3e-6, 5e-5, 1e-9)
		rng := rand.New(rand.NewPCG(1, 1))
		var off float64
		for range 400 {
			n, before := 50+float64(rng.IntN(20_000)), float64(rng.IntN(20_000))
			x := vector{1, n + before, n, n*before + n*n/2}
			y := dot(&x, &want)
			off = max(off*.99, math.Abs(f.of(x)-y)/y)
			f.learn(x, vector{}, y*(1+.1*rng.NormFloat64()))
		}
		if off > .1 {
			t.Errorf("%v: learned %v; it is off by %.2f", want, f.weights, off)
		}
		for _, w := range f.weights {
			if w < 0 || math.IsNaN(w) {
				t.Errorf("%v: learned %v", want, f.weights)
			}
		}
	}
}

// TestFitIsTheBest: the weights after each observation are the best of all subsets, whichever of them are 0 at the time.
func TestFitIsTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	f, sets := newFit(firstPrompt...), map[int]bool{}
	for i := range 2000 {
		n, before := 50+float64(rng.IntN(20_000)), float64(rng.IntN(20_000))
		step := .02 * rng.Float64()
		want := vector{.01 * float64(i/100%3), 1e-5 * float64(i/200%2), float64(i / 400 % 2), 8e-5, 1e-9 * float64(i/300%2), .001}
		x := vector{1, n + before, step, n, n*before + n*n/2, n * step}
		f.learn(x, vector{}, dot(&x, &want)*(1+.1*rng.NormFloat64()))
		a, b := f.equations()
		best, set := bestOfAll(a, b, f.n), 0
		for j := range best {
			if !near(f.weights[j], best[j], 1e-6) {
				t.Fatalf("after %d observations the weights are %v; want %v", i+1, f.weights, best)
			}
			if best[j] > 0 {
				set |= 1 << j
			}
		}
		sets[set] = true
	}
	if len(sets) < 4 {
		t.Errorf("only %d sets of weights were not 0", len(sets))
	}
}

// begin begins a leg. Tokens that come more than 50 ms after others are late.
func begin(e *Engine, l *Leg, now float64, prompt, uncached int, answers, silent bool) {
	*l = Leg{Prompt: prompt, Uncached: uncached, Answers: answers, Silent: silent, Late: .05}
	e.Begin(l, now)
}

// scripted is a model whose engines read nothing, compute 1,000 tokens a second, and whose steps take 10 ms.
func scripted() *Model {
	m := NewModel()
	m.prompt, m.step = newFit(1e-9, 1e-12, 1e-9, 1e-3, 1e-15, 1e-9), newFit(.01, 1e-9, 1e-12)
	return m
}

// TestWait follows what an engine is thought to have before it.
func TestWait(t *testing.T) {
	e := scripted().NewEngine()
	var a, b, c Leg
	wait := func(now, want float64) {
		t.Helper()
		if got := e.Work(now).Wait; !near(got, want, .01) {
			t.Errorf("at %v: wait %v; want %v", now, got, want)
		}
	}
	wait(0, 0)
	begin(e, &a, 10, 1000, 1000, false, false)
	wait(10, 1)
	wait(10.25, .75)
	begin(e, &b, 10.5, 3000, 2000, true, false) // it has 1,000 of them
	wait(10.5, 2.5)
	begin(e, &c, 10.5, 500, 0, true, false) // its KV comes from elsewhere
	wait(10.5, 2.5)
	wait(12, 3) // a is late by one second, and may be so by another
	e.FirstToken(&a, 12)
	e.End(&a, 12)
	wait(12, 2)
	e.End(&b, 13) // its client has left
	wait(13, 0)
	if w := e.Work(13); w.Streams != 1 || w.Context != 500 {
		t.Errorf("got %+v", w)
	}
}

// TestStreams counts streams and their tokens from the first token on, and nothing is left of a leg however it ends.
func TestStreams(t *testing.T) {
	e := scripted().NewEngine()
	count := func(streams, context int) {
		t.Helper()
		if w := e.Work(100); w.Streams != streams || w.Context != context {
			t.Errorf("got %d streams with %d tokens; want %d with %d", w.Streams, w.Context, streams, context)
		}
	}
	var own, received, handed, never Leg
	begin(e, &own, 1, 100, 100, true, false)
	begin(e, &received, 1, 200, 0, true, false)
	begin(e, &handed, 1, 300, 300, false, false)
	count(1, 200)
	e.FirstToken(&own, 1.1)
	e.FirstToken(&own, 1.1) // said twice
	e.FirstToken(&received, 1.1)
	e.FirstToken(&handed, 1.4)
	count(2, 300)
	e.Said(&own, 1.2, 20)
	e.Said(&handed, 1.2, 20) // it has no answer
	count(2, 320)
	for range 2 {
		for _, l := range []*Leg{&own, &received, &handed, &never} {
			e.End(l, 2)
		}
	}
	e.Said(&own, 3, 20) // it has ended
	count(0, 0)
}

// TestSilent: a prompt of whose end nobody tells is computed when it should be, and the next one begins then.
func TestSilent(t *testing.T) {
	e := scripted().NewEngine()
	var whole, next Leg
	begin(e, &whole, 1, 1000, 1000, true, true)
	begin(e, &next, 1.1, 500, 500, true, false)
	if w := e.Work(1.5); w.Streams != 0 || !near(w.Wait, 1, .01) {
		t.Errorf("got %+v before the end of its prompt", w)
	}
	if w := e.Work(2.25); w.Streams != 1 || !near(w.Wait, .25, .01) {
		t.Errorf("got %+v behind it", w)
	}
	e.End(&whole, 3)
	e.End(&next, 3)
	if w := e.Work(3); w.Streams != 0 || w.Wait != 0 {
		t.Errorf("%+v is left", w)
	}
}

// TestLearnsSpeed: of two engines of a model one takes twice as long; both are told apart, and a new one is taken for one between.
func TestLearnsSpeed(t *testing.T) {
	m := NewModel()
	slow, fast := m.NewEngine(), m.NewEngine()
	rng := rand.New(rand.NewPCG(1, 1))
	now := 0.0
	for range 200 {
		for i, e := range []*Engine{fast, slow} {
			times := float64(1 + i)
			n := 100 + rng.IntN(10_000)
			var l Leg
			begin(e, &l, now, n, n, true, false)
			now += times * (.02 + 1e-4*float64(n))
			e.FirstToken(&l, now)
			for range 20 {
				now += times * .02
				e.Said(&l, now, 1)
			}
			e.End(&l, now)
		}
	}
	of := func(e *Engine, n int) (prompt, step float64) {
		w := e.Work(now)
		for i, x := range policies.PromptTerms(n, n, w.Speed.Step[0]) {
			prompt += x * w.Speed.Prompt[i]
		}
		for i, x := range policies.StepTerms(1, n) {
			step += x * w.Speed.Step[i]
		}
		return prompt, step
	}
	for _, n := range []int{200, 1000, 10_000} {
		want := .02 + 1e-4*float64(n)
		if p, s := of(fast, n); !near(p, want, .2) || !near(s, .02, .2) {
			t.Errorf("fast, %d tokens: %v and %v; want %v and .02", n, p, s, want)
		}
		if p, s := of(slow, n); !near(p, 2*want, .25) || !near(s, .04, .2) {
			t.Errorf("slow, %d tokens: %v and %v; want %v and .04", n, p, s, 2*want)
		}
		if p, _ := of(m.NewEngine(), n); p < want || p > 2*want {
			t.Errorf("new, %d tokens: %v; want %v to twice that", n, p, want)
		}
	}
}

// TestSlowSteps: an engine all of whose tokens are late, though it computes no prompts, has slow steps. One that computes prompts all the time may not.
func TestSlowSteps(t *testing.T) {
	m := NewModel()
	fast, slow, busy := m.NewEngine(), m.NewEngine(), m.NewEngine()
	now := 0.0
	answer := func(e *Engine, gap float64, prompts bool) {
		var l, p Leg
		begin(e, &l, now, 1000, 0, true, false)
		e.FirstToken(&l, now)
		for range 100 {
			if prompts {
				begin(e, &p, now, 1000, 1000, false, false)
			}
			now += gap
			e.FirstToken(&p, now)
			e.End(&p, now)
			e.Said(&l, now, 1)
		}
		e.End(&l, now)
	}
	for range 50 {
		answer(fast, .02, false)
		answer(slow, .1, false)
		answer(busy, .1, true)
	}
	for name, x := range map[string]struct {
		e    *Engine
		want float64
	}{"fast": {fast, .02}, "slow": {slow, .1}, "busy with prompts": {busy, .02}} {
		if got := x.e.StepSeconds(); !near(got, x.want, .3) {
			t.Errorf("%s: a step is thought to take %.3f s; want %.3f", name, got, x.want)
		}
	}
}

// TestBurst: tokens that were held up and came all at once do not make the engine fast.
func TestBurst(t *testing.T) {
	m := NewModel()
	e := m.NewEngine()
	var l Leg
	now := 0.0
	begin(e, &l, now, 100, 0, true, false)
	step := func() float64 {
		w := e.Work(now)
		return w.Speed.Step[0] + w.Speed.Step[1] + w.Speed.Step[2]*float64(w.Context)
	}
	e.FirstToken(&l, now)
	for range 200 {
		now += 16 * .02
		e.Said(&l, now, 16)
	}
	now += .6
	e.Said(&l, now, 10)
	now += 2e-5
	e.Said(&l, now, 20)
	if got := step(); !near(got, .02, .1) {
		t.Errorf("a step of %v behind a burst; want 0.02", got)
	}
}

// TestPassedPrompts: of a prompt that is computed after one that came later nothing is learned, as when the engine began with it is not known.
func TestPassedPrompts(t *testing.T) {
	m := scripted()
	e := m.NewEngine()
	for i := range 100 {
		now := float64(10 * i)
		var a, b Leg
		begin(e, &a, now, 1000, 1000, false, false)
		begin(e, &b, now, 1000, 1000, false, false)
		e.FirstToken(&b, now+1)
		e.FirstToken(&a, now+2)
	}
	if got := e.PromptSeconds(1000, 1000); !near(got, 1, .01) {
		t.Errorf("a prompt takes %v s; want 1", got)
	}
}

// TestCountedPrompts: where nobody knows what engines have cached, speeds are learned by what they say of that afterwards, and prompts to come are thought
// to be as those before.
func TestCountedPrompts(t *testing.T) {
	m := scripted()
	e, now, took, thought := m.NewEngine(), 0.0, 0.0, 0.0
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 500 {
		var l Leg
		prompt := 100 + rng.IntN(2000)
		uncached := prompt
		if i%2 == 0 {
			uncached = prompt / 10
		}
		begin(e, &l, now, prompt, m.Uncached(prompt), false, false)
		if i >= 100 {
			took += float64(uncached) / 1000
			thought += e.Work(now).Wait
		}
		now += float64(uncached) / 1000
		e.Counted(&l, prompt-uncached)
		e.FirstToken(&l, now)
	}
	t.Log(thought/15, took/15, m.prompt.weights)
	if !near(thought, took, .1) {
		t.Errorf("prompts took %v s; they were thought to take %v", took, thought)
	}
	for _, uncached := range []int{1000, 100} {
		if got := e.PromptSeconds(1000, uncached); !near(got, float64(uncached)/1000, .05) {
			t.Errorf("a prompt of 1,000 tokens, of which %d are computed, takes %v s", uncached, got)
		}
	}
	var none Leg
	begin(e, &none, now, 0, 1, false, false)
	e.Counted(&none, 0)
	e.FirstToken(&none, now+.01)
	if got := e.PromptSeconds(1000, 1000); math.IsNaN(got) {
		t.Error("a prompt without tokens makes the speed no number")
	}
}

// TestCanceledPrompts: an engine whose prompts were taken back has not computed them.
func TestCanceledPrompts(t *testing.T) {
	e := scripted().NewEngine()
	for i := range 20 {
		var l Leg
		now := 1 + float64(i)/1000
		begin(e, &l, now, 100_000, 100_000, true, false)
		e.End(&l, now+.0005)
	}
	if w := e.Work(2); w.Prompts > .01 {
		t.Errorf("busy with prompts for a part of %v", w.Prompts)
	}
}

// TestRefusedPrompts: a prompt that engines refuse, as it is too long for their model, is not among those that they compute.
func TestRefusedPrompts(t *testing.T) {
	m := scripted()
	e, now := m.NewEngine(), 0.
	compute := func(silent bool) {
		var l Leg
		begin(e, &l, now, 1000, 1000, true, silent)
		if now++; silent {
			e.Whole(&l, now, 1)
		} else {
			e.FirstToken(&l, now)
		}
		e.End(&l, now)
	}
	for i := range 100 {
		compute(i%2 == 0)
	}
	for i := range 20 {
		var l Leg
		begin(e, &l, now, 140_000, 140_000, true, i%2 == 0)
		e.End(&l, now+.01)
		compute(i%2 == 0)
	}
	if got := m.UsualPrompt(); !near(float64(got), 1000, .01) {
		t.Errorf("engines are thought to compute %d tokens of a prompt; want 1000", got)
	}
	if got := m.PromptSeconds(); !near(got, 1, .05) {
		t.Errorf("a prompt is thought to take %.2f s in the mean; want 1", got)
	}
	if got := m.Demand(now).PromptFound; !near(got, 1, .05) {
		t.Errorf("requests are thought to find prompts of %.2f s; want 1", got)
	}
}

// TestDemand: rates, answers, what is saved up of long gaps, and errors of predictions.
func TestDemand(t *testing.T) {
	m := NewModel()
	for i := range 400 {
		m.Arrived(float64(i) / 4)
		m.Answered(100)
		m.Predicted(1.1, 1)
	}
	e := m.NewEngine()
	var l Leg
	begin(e, &l, 0, 10, 0, true, false)
	before := m.Demand(100).LongGaps
	e.FirstToken(&l, 0)
	for i := range 5 { // a thousand tokens, and five late ones, of which the last is not told yet
		e.Said(&l, float64(i), 200)
		e.Said(&l, float64(i)+.9, 1)
	}
	d := m.Demand(100)
	if !near(d.Rate, 4, .15) || !near(d.Answer, 100, .01) || !near(d.Error, .1, .02) || !near(d.LongGaps-before, 1004*.01-4, .01) {
		t.Errorf("got %+v, %v long gaps before", d, before)
	}
	if late := m.Demand(1000).Rate; late > 1e-6 {
		t.Errorf("a rate of %v long after the last request", late)
	}
	for i := range 2000 {
		e.Said(&l, 10+float64(i), 1)
	}
	if got := m.Demand(100).LongGaps; got != -100 {
		t.Errorf("%v long gaps; want a bound of %v", got, -100)
	}
}

// TestRandomWalk: whatever happens in whatever order, numbers stay finite and nothing is left at the end.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := NewModel()
		e, other := m.NewEngine(), m.NewEngine()
		legs := make([]Leg, 8)
		begun := make([]bool, len(legs))
		now := 0.0
		for range 300 {
			now += rng.Float64() * float64(rng.IntN(3)) // sometimes no time passes
			i := rng.IntN(len(legs))
			l := &legs[i]
			switch rng.IntN(5) {
			case 4:
				e.Whole(l, now, rng.IntN(500))
			case 0:
				if !begun[i] {
					n := rng.IntN(50_000)
					begin(e, l, now, n, rng.IntN(n+1), rng.IntN(2) == 0, rng.IntN(2) == 0)
					begun[i] = true
				}
			case 1:
				e.FirstToken(l, now)
			case 2:
				e.Said(l, now, rng.IntN(40))
			case 3:
				e.End(l, now)
				begun[i] = false
			}
			m.Moved(0, e, other, rng.IntN(1000), rng.Float64()-.1)
			w, d := e.Work(now), m.Demand(now)
			for _, x := range append(append(w.Speed.Prompt[:], w.Speed.Step[:]...), w.Wait, w.Prompts, w.Speed.LongGaps, d.Rate, d.Move[0], d.Move[1], m.HandOff(e, other), m.HandOff(other, e)) {
				if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
					t.Fatalf("seed %d: %+v %+v", seed, w, d)
				}
			}
		}
		for i := range legs {
			e.End(&legs[i], now)
		}
		if w := e.Work(now); w.Streams != 0 || w.Context != 0 || w.Wait != 0 {
			t.Fatalf("seed %d: %+v is left", seed, w)
		}
	}
}

// TestWholeAnswers: where no answer is streamed, prompts and steps are learned from how long whole answers take.
func TestWholeAnswers(t *testing.T) {
	m := NewModel()
	e := m.NewEngine()
	rng := rand.New(rand.NewPCG(1, 1))
	now := 0.0
	seconds := func(n, answer int) float64 { return .05 + 3e-4*float64(n) + .03*float64(answer-1) }
	predicted := func(n, answer int) float64 {
		w := e.Work(now)
		step := w.Speed.Step[0] + w.Speed.Step[1] + w.Speed.Step[2]*float64(n)
		sum := step * float64(answer-1)
		for i, x := range policies.PromptTerms(n, n, step) {
			sum += x * w.Speed.Prompt[i]
		}
		return sum
	}
	for range 1000 {
		n, answer := 100+rng.IntN(20_000), 1+rng.IntN(300)
		var l Leg
		begin(e, &l, now, n, n, true, true)
		now += seconds(n, answer)
		e.Whole(&l, now, answer)
		e.End(&l, now)
		now += .1
	}
	for _, x := range []struct{ n, answer int }{{500, 1}, {500, 300}, {10_000, 1}, {20_000, 1}, {20_000, 200}} {
		if got, want := predicted(x.n, x.answer), seconds(x.n, x.answer); !near(got, want, .2) {
			t.Errorf("%d tokens and an answer of %d: %.2f s; want %.2f", x.n, x.answer, got, want)
		}
	}
}

// TestFirstObservation: what the only engine takes is what engines take in the mean, so it counts once and not as slowness of this engine too.
func TestFirstObservation(t *testing.T) {
	for _, whole := range []bool{false, true} {
		m := NewModel()
		e := m.NewEngine()
		for i, want := range []float64{.8, .8, .8} {
			now := 10 * float64(i)
			var l Leg
			begin(e, &l, now, 1000, 1000, true, whole)
			if i > 0 && !near(l.read-l.at+l.work, want, .2) {
				t.Errorf("whole %v: prompt %d is thought to take %.2f s; want %.2f", whole, i, l.read-l.at+l.work, want)
			}
			if whole {
				e.Whole(&l, now+want, 1)
			} else {
				e.FirstToken(&l, now+want)
			}
			e.End(&l, now+want)
		}
	}
}

// TestCachedWholeAnswers: prompts of one length are answered at once, most of them by an engine that has cached most of them and says so.
func TestCachedWholeAnswers(t *testing.T) {
	m := NewModel()
	e := m.NewEngine()
	seconds := func(uncached int) float64 { return .02 + 2e-4*float64(uncached) }
	for i := range 40 {
		now, uncached := 10*float64(i), 150
		if i%20 == 0 {
			uncached = 1600
		}
		var l Leg
		begin(e, &l, now, 1600, m.Uncached(1600), true, true)
		e.Counted(&l, 1600-uncached)
		e.Whole(&l, now+seconds(uncached)+.07, 8)
		e.End(&l, now+seconds(uncached)+.07)
		if got := m.ComputeSeconds(1600); i > 0 && !near(got, 1600*2e-4, .4) {
			t.Errorf("after %d answers 1,600 tokens are thought to take %.3f s; want %.3f", i+1, got, 1600*2e-4)
		}
	}
	if got := m.Uncached(1600); got > 600 {
		t.Errorf("%d of 1,600 tokens are thought to be computed", got)
	}
}

// TestHandOffs: one pair of engines takes five times as long as others. A pair that was not seen yet takes as long as its slower end.
func TestHandOffs(t *testing.T) {
	m := NewModel()
	p := []*Engine{m.NewEngine(), m.NewEngine()}
	d := []*Engine{m.NewEngine(), m.NewEngine(), m.NewEngine()}
	if got := m.HandOff(p[0], d[0]); got != 1 {
		t.Errorf("before any: %v times; want 1", got)
	}
	seconds := func(tokens int) float64 { return .01 + 1e-5*float64(tokens) }
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		n := rng.IntN(20_000)
		m.Moved(0, p[0], d[0], n, seconds(n))
		m.Moved(0, p[0], d[1], n, seconds(n))
		m.Moved(0, p[1], d[1], n, 5*seconds(n))
	}
	of := func(p, d *Engine, n int) float64 {
		demand := m.Demand(0)
		return m.HandOff(p, d) * demand.MoveSeconds(n, d.StepSeconds())
	}
	for _, n := range []int{100, 5000, 20_000} {
		for _, x := range []struct {
			what string
			p, d *Engine
			want float64
		}{{"fast", p[0], d[0], 1}, {"the slow one's decode with another", p[0], d[1], 1}, {"slow", p[1], d[1], 5}, {"not seen, of the slow prefill", p[1], d[0], 5}} {
			if got, want := of(x.p, x.d, n), x.want*seconds(n); !near(got, want, .25) {
				t.Errorf("%s, %d tokens: %.3f s; want %.3f", x.what, n, got, want)
			}
		}
	}
	if got := m.HandOff(p[0], d[2]); got > 1 {
		t.Errorf("a new decode engine and a fast prefill engine: %v times; want 1 at most", got)
	}
	for range 2 * mostPairs {
		m.Moved(0, m.NewEngine(), d[0], 100, .01)
	}
	if n := len(m.handOffs.pairs); n > mostPairs {
		t.Errorf("%d pairs are kept", n)
	}
}

// TestLongGaps: how many long gaps a second of prompts makes in a stream is learned from how long these are.
func TestLongGaps(t *testing.T) {
	e := NewModel().NewEngine()
	if got := e.Work(0).Speed.LongGaps; got != firstLongGaps {
		t.Errorf("%v before any", got)
	}
	l := Leg{Prompt: 10, Answers: true, Late: .05}
	e.Begin(&l, 0)
	e.FirstToken(&l, 0)
	now := 0.0
	for i := range 50 * toldEvery {
		if now += .02; i%toldEvery < 4 {
			now += .23
		}
		e.Said(&l, now, 1)
	}
	if got := e.Work(now).Speed.LongGaps; !near(got, 4, .05) {
		t.Errorf("%v in a second; want 4, as gaps are of 0.25 s", got)
	}
}

// TestHandOffToBusyEngines: the first token waits for the step under way and for its own, so a hand-off to an engine with more streams takes longer.
func TestHandOffToBusyEngines(t *testing.T) {
	m := NewModel()
	p, idle, busy := m.NewEngine(), m.NewEngine(), m.NewEngine()
	for range 300 {
		busy.Begin(&Leg{Prompt: 1000, Answers: true}, 0)
	}
	for i := range 300 {
		for _, d := range []*Engine{idle, busy} {
			m.Moved(0, p, d, 100*(i%50), .005+2*d.StepSeconds())
		}
	}
	demand := m.Demand(0)
	for _, d := range []*Engine{idle, busy} {
		if got, want := demand.MoveSeconds(1000, d.StepSeconds()), .005+2*d.StepSeconds(); !near(got, want, .1) {
			t.Errorf("%v s with steps of %v s; want %v", got, d.StepSeconds(), want)
		}
	}
}

// TestPromptsOfOneStep: two prompts whose last parts are computed in one step have first tokens at once. Neither teaches that prompts take longer.
func TestPromptsOfOneStep(t *testing.T) {
	m := scripted()
	e := m.NewEngine()
	now := 0.0
	for range 200 {
		legs := [4]Leg{}
		for i := range legs {
			legs[i] = Leg{Prompt: 1000, Uncached: 1000}
			e.Begin(&legs[i], now)
		}
		for i := range legs { // each takes a second
			if i%2 == 0 {
				now += 2
			}
			e.FirstToken(&legs[i], now)
		}
	}
	l := Leg{Prompt: 1000, Uncached: 1000}
	e.Begin(&l, now)
	if got := e.Work(now).Wait; !near(got, 1, .15) {
		t.Errorf("a prompt takes %.2f s; want 1", got)
	}
}

// TestOvertaking: an engine begins with a prompt when it has read it, so a short one that comes later overtakes a long one.
func TestOvertaking(t *testing.T) {
	m := scripted()
	m.prompt = newFit(1e-9, 1e-4, 1e-9, 1e-3, 1e-15, 1e-9) // it reads 10,000 tokens a second
	e := m.NewEngine()
	var long, short, after Leg
	begin(e, &long, 10, 10_000, 10_000, false, false)
	if w := e.Work(10.5); !near(w.Wait, 10.5, .01) || w.Soon != 0 || !near(w.Reading, .5, .01) {
		t.Errorf("while it reads a prompt: %+v", w)
	}
	begin(e, &short, 10.5, 200, 200, false, false)
	if w := e.Work(10.6); !near(w.Wait, 10.4, .01) || !near(w.Soon, .12, .01) || !near(w.Reading, .4, .01) {
		t.Errorf("with one that overtakes it: %+v", w)
	}
	e.FirstToken(&short, 10.72)
	begin(e, &after, 11.2, 200, 200, false, false)
	if w := e.Work(11.25); !near(w.Wait, 9.95, .01) || w.Soon != w.Wait && !near(w.Soon, 9.75, .01) {
		t.Errorf("with one that came once it was read: %+v", w)
	}
	e.FirstToken(&long, 21)
	if w := e.Work(21); !near(w.Wait, .2, .01) || w.Soon != w.Wait || w.Reading != 0 {
		t.Errorf("after it: %+v", w)
	}
}

// TestStepUnderWay: however short a prompt is, it waits for the step under way and for its own, which take longer at an engine with many streams.
func TestStepUnderWay(t *testing.T) {
	m := NewModel()
	idle, busy, now := m.NewEngine(), m.NewEngine(), 0.0
	streams := make([]Leg, 100)
	for i := range streams {
		begin(busy, &streams[i], now, 100, 0, true, false)
		busy.FirstToken(&streams[i], now)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		now += .04
		for i := range streams {
			busy.Said(&streams[i], now, 1)
		}
		for _, e := range []*Engine{idle, busy} {
			n := 1 + rng.IntN(2000)
			var l Leg
			begin(e, &l, now, n, n, false, false)
			e.FirstToken(&l, now+1.5*e.StepSeconds()+1e-4*float64(n))
		}
	}
	if got := busy.StepSeconds(); !near(got, .04, .1) {
		t.Errorf("a step of 100 streams takes %.3f s; want 0.04", got)
	}
	for i, e := range []*Engine{idle, busy} {
		if got, want := e.PromptSeconds(10, 10), 1.5*e.StepSeconds()+.001; !near(got, want, .15) {
			t.Errorf("engine %d: a prompt of 10 tokens takes %.3f s; want %.3f", i, got, want)
		}
	}
}

// TestLongPromptsAmongShortOnes: how long short prompts seem to take is often wrong. The engine may have lost what it had cached, and their last tokens may
// be computed in a step with another's. Long ones, which are rare, are thought to take about what they take.
func TestLongPromptsAmongShortOnes(t *testing.T) {
	truth := vector{.0026, 1e-5, 1, 8e-5, 1e-9, 5e-4}
	const seeds = 20
	off := 0.
	for seed := range uint64(seeds) {
		m := NewModel()
		e, rng, now := m.NewEngine(), rand.New(rand.NewPCG(1, seed)), 0.
		for range 1000 {
			uncached, before := 16+rng.IntN(1000), rng.IntN(10_000)
			if rng.IntN(4) == 0 {
				uncached *= 20
			}
			var l Leg
			begin(e, &l, now, uncached+before, uncached, false, false)
			x := l.terms
			if rng.IntN(20) == 0 {
				x = policies.PromptTerms(uncached+before, uncached+before/2, l.terms[underWay])
			}
			now += dot(&x, &truth)
			if rng.IntN(2) == 0 {
				now += .2 * rng.Float64() // as long as a step of 2,048 tokens
			}
			e.FirstToken(&l, now)
			now++
		}
		var l Leg
		begin(e, &l, now, 120_000, 119_500, false, false)
		took := dot(&l.terms, &truth)
		off += math.Abs(l.read-l.at+l.work-took) / took
	}
	if off > .1*seeds {
		t.Errorf("what a long prompt is thought to take is off by %.0f %% in the mean; want 10 at most", 100*off/seeds)
	}
}
