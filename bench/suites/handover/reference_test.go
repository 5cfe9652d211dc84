package handover

import (
	"testing"
	"time"

	"pdrouter/bench/sim"
)

// TestReferenceCosts: the engines' flags say what the model of costs says.
func TestReferenceCosts(t *testing.T) {
	c, err := sim.CostsOf(referenceCosts)
	if err != nil {
		t.Fatal(err)
	}
	want := c.StepTime([]sim.Part{{N: handoverPrompt, Prefill: true}})
	if got := handoverPrompt * perToken(); got < want*95/100 || got > want*105/100 {
		t.Errorf("the engines take %v for a prompt, the model says %v", got, want)
	}
	if got := referenceStep(); got < 5*time.Millisecond || got > 7*time.Millisecond {
		t.Errorf("a step of one answer takes %v; the fit says 5.87 ms", got)
	}
}
