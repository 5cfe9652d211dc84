package forecast

import (
	"math/rand/v2"
	"testing"

	"pdrouter/policies"
)

// TestSlowFirstPrompt: an engine whose first prompt takes half a minute, as it warms up, gets its part of the requests again.
func TestSlowFirstPrompt(t *testing.T) {
	m := NewModel()
	policy := policies.Default()
	const engines, every, tokens = 2, .5, 1000
	all := []*Engine{m.NewEngine(), m.NewEngine()}
	f := policies.Fleet{Forecast: &policies.Forecast{Decode: make([]policies.Work, engines)}, Decode: make([]policies.Engine, engines)}
	for i := range f.Decode {
		f.Decode[i] = policies.Engine{Name: string(rune('a' + i)), Usable: true}
	}
	type ending struct {
		at float64
		of int
		l  *Leg
	}
	var under []ending
	given := [engines]int{}
	warm := [engines]bool{}
	for n := range 800 {
		now := float64(n) * every
		kept := under[:0]
		for _, u := range under {
			if u.at > now {
				kept = append(kept, u)
				continue
			}
			all[u.of].FirstToken(u.l, u.at)
			all[u.of].End(u.l, u.at)
		}
		under = kept
		for i, e := range all {
			f.Forecast.Decode[i] = e.Work(now)
		}
		f.Forecast.Demand = m.Demand(now)
		c := policy.Choose(policies.Request{PromptTokens: tokens, Unsplittable: policies.Aggregated}, f, policies.Draw{Turn: uint64(n)})
		if n >= 600 {
			given[c.Decode]++
		}
		l := &Leg{Prompt: tokens, Uncached: tokens, Answers: true, Late: .05}
		all[c.Decode].Begin(l, now)
		took := .1
		if !warm[c.Decode] && c.Decode == 0 {
			warm[c.Decode], took = true, 30
		}
		under = append(under, ending{now + took, c.Decode, l})
	}
	if given[0] < 50 || given[1] < 50 {
		t.Errorf("of the latest 200 requests the engines got %v; want at least 50 each", given)
	}
}

// TestSlowPromptBesideStreams: an engine whose only prompt was slow is thought to compute prompts as fast as others again, though it gives answers all
// the time.
func TestSlowPromptBesideStreams(t *testing.T) {
	m := NewModel()
	usual, slow := m.NewEngine(), m.NewEngine()
	now := 0.0
	prompt := func(e *Engine, took float64) {
		var l Leg
		begin(e, &l, now, 1000, 1000, false, false)
		now += took
		e.FirstToken(&l, now)
		e.End(&l, now)
	}
	for range 100 {
		prompt(usual, .1)
	}
	if prompt(slow, 20); slow.PromptSeconds(1000, 1000) < 5 {
		t.Fatalf("a prompt is thought to take %.2f s after one of 20 s", slow.PromptSeconds(1000, 1000))
	}
	for until := now + forgetAfter + 1; now < until; {
		var l Leg
		begin(slow, &l, now, 1000, 0, true, false)
		slow.FirstToken(&l, now)
		for range 200 {
			now += .02
			slow.Said(&l, now, 1)
		}
		slow.End(&l, now)
	}
	if got, want := slow.PromptSeconds(1000, 1000), usual.PromptSeconds(1000, 1000); !near(got, want, .1) {
		t.Errorf("a prompt is thought to take %.2f s; want %.2f, as at the other engine", got, want)
	}
}

// TestSlowFirstHandOff: a pair whose first hand-off was slow, as decode warmed up, is thought to be as fast as others again when it has had none for
// long. So is the engine, with others.
func TestSlowFirstHandOff(t *testing.T) {
	m := NewModel()
	p, other, usual, slow := m.NewEngine(), m.NewEngine(), m.NewEngine(), m.NewEngine()
	now := 0.0
	handOff := func(to *Engine, took float64) {
		now++
		m.Moved(now, p, to, 1000, took)
		m.Demand(now)
	}
	for range 100 {
		handOff(usual, .05)
	}
	if handOff(slow, 10); m.HandOff(p, slow) < 5 || m.HandOff(other, slow) < 5 {
		t.Fatalf("hand-offs are thought to take %.1f and %.1f times as long after one of 10 s", m.HandOff(p, slow), m.HandOff(other, slow))
	}
	for range forgetPairsAfter + 100 {
		handOff(usual, .05)
	}
	if a, b := m.HandOff(p, slow), m.HandOff(other, slow); a > 1.1 || b > 1.1 {
		t.Errorf("hand-offs are thought to take %.1f and %.1f times as long as others; want 1", a, b)
	}
	if got := m.HandOff(p, usual); !near(got, 1, .1) {
		t.Errorf("hand-offs of the usual pair are thought to take %.1f times as long; want 1", got)
	}
}

// TestOnlyEngineWarmsUp: the only engine takes half a minute for its first prompt. After some more it is thought to be as fast as it is, and so are
// engines in the mean.
func TestOnlyEngineWarmsUp(t *testing.T) {
	for _, whole := range []bool{false, true} {
		m := NewModel()
		e := m.NewEngine()
		for i := range 31 {
			now, took := 40*float64(i), .08
			if i == 0 {
				took = 30
			}
			var l Leg
			begin(e, &l, now, 1000, 1000, true, whole)
			if whole {
				e.Whole(&l, now+took, 1)
			} else {
				e.FirstToken(&l, now+took)
			}
			e.End(&l, now+took)
		}
		if got := e.PromptSeconds(1000, 1000); !near(got, .08, .5) {
			t.Errorf("whole %v: a prompt is thought to take %.2f s; want 0.08", whole, got)
		}
		if got := m.NewEngine().PromptSeconds(1000, 1000); !near(got, .08, .5) {
			t.Errorf("whole %v: a prompt is thought to take %.2f s in the mean; want 0.08", whole, got)
		}
	}
}

// TestBusyAfterWarmUp: an engine that takes half a minute for its first prompts and little for the next ones is not thought to be busy with these for as
// long as they were thought to take.
func TestBusyAfterWarmUp(t *testing.T) {
	for _, together := range []int{1, 8} {
		e, now := NewModel().NewEngine(), 0.
		prompts := func(took float64) {
			legs := make([]Leg, together)
			for i := range legs {
				begin(e, &legs[i], now, 1000, 1000, false, false)
			}
			for i := range legs {
				now += took / float64(together)
				e.FirstToken(&legs[i], now)
			}
		}
		prompts(30)
		now += 100
		for range 3 {
			prompts(.1)
			now += 2
		}
		if got := e.Work(now).Prompts; got > .1 {
			t.Errorf("%d together: the engine is thought to compute prompts in %.2f of its time; want .1 at most", together, got)
		}
	}
}

// TestEarlierFirstToken: of two goroutines the one that is second may tell an earlier time. The engine has computed for no less than no time then.
func TestEarlierFirstToken(t *testing.T) {
	e := scripted().NewEngine()
	var l Leg
	begin(e, &l, 1.001, 1000, 1000, false, false)
	e.FirstToken(&l, 1)
	if w := e.Work(1.001); w.Prompts < 0 {
		t.Errorf("it computes prompts in %g of its time", w.Prompts)
	}
}

// TestSlowEngineInBursts: one of three engines takes three times as long, and some of its prompts come in no time, as they were held up on the way. It is
// still thought to take that long, and the others what they take.
func TestSlowEngineInBursts(t *testing.T) {
	m := NewModel()
	all := []*Engine{m.NewEngine(), m.NewEngine(), m.NewEngine()}
	seconds := func(tokens int) float64 { return .02 + 1e-4*float64(tokens) }
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 600 {
		now, tokens := 2*float64(i), 200+rng.IntN(2000)
		for k, e := range all {
			took := seconds(tokens) * (1 + .1*rng.Float64())
			if k == 0 {
				took *= 3
				if i%15 == 0 {
					took = .001
				}
			}
			var l Leg
			begin(e, &l, now, tokens, tokens, false, false)
			e.FirstToken(&l, now+took)
			e.End(&l, now+took)
		}
	}
	for k, e := range all {
		want := seconds(1000)
		if k == 0 {
			want *= 3
		}
		if got := e.PromptSeconds(1000, 1000); !near(got, want, .25) {
			t.Errorf("engine %d: a prompt is thought to take %.3f s; want %.3f", k, got, want)
		}
	}
}

// TestFirstAnswersAreWhole: engines all of whose answers come at once, faster than the first ones were thought to, are soon known by these answers. Prompts
// that are thought to take no time, as the first answer took less than its steps alone were to take, are learned from too.
func TestFirstAnswersAreWhole(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := NewModel()
		e := m.NewEngine()
		for i := range 60 {
			now, prompt, tokens := 40*float64(i), 20+rng.IntN(2000), 1+rng.IntN(60)
			took := (.01 + 5e-5*float64(prompt) + .008*float64(tokens-1)) * (.95 + .1*rng.Float64())
			var l Leg
			begin(e, &l, now, prompt, prompt, true, true)
			e.Whole(&l, now+took, tokens)
			e.End(&l, now+took)
		}
		if got := m.ComputeSeconds(1000); !near(got, .05, .3) {
			t.Errorf("seed %d: 1,000 tokens are thought to take %.4f s; want 0.05", seed, got)
		}
	}
}
