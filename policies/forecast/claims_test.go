package forecast

import (
	"math"
	"testing"

	"pdrouter/policies"
)

// TestClaims: one whole answer that came at once, or of which its engine claims more tokens than it can have given, changes what is predicted by no
// more than a slow or fast answer does.
func TestClaims(t *testing.T) {
	for name, one := range map[string]struct {
		took   float64
		tokens int
	}{"at once": {1e-6, 1}, "a claim": {2, math.MaxInt64}} {
		t.Run(name, func(t *testing.T) {
			m := NewModel()
			e := m.NewEngine()
			now := 0.0
			answer := func(took float64, tokens int) {
				now += 100
				l := Leg{Prompt: 1000, Uncached: 1000, Answers: true, Silent: true}
				e.Begin(&l, now)
				e.Whole(&l, now+took, tokens)
				e.End(&l, now+took)
				m.Answered(tokens)
			}
			for range 100 {
				answer(2, 101)
			}
			step := func() float64 { return m.stepSeconds(1, 1000) }
			prompt := func() float64 {
				reads, computes := m.given(policies.PromptTerms(1000, 1000, step()))
				return reads + computes
			}
			p, s := prompt(), step()
			answer(one.took, one.tokens)
			if got := prompt(); got < p/3 || got > 3*p {
				t.Errorf("a prompt takes %v; want %v", got, p)
			}
			if got := step(); got < s/3 || got > 3*s {
				t.Errorf("a step takes %v; want %v", got, s)
			}
			if got := m.Demand(now).Answer; got > 10_000 {
				t.Errorf("an answer has %v tokens", got)
			}
		})
	}
}
