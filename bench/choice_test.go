package bench

import (
	"testing"

	"pdrouter/bench/suites/replay"
)

func TestChoices(t *testing.T) {
	for _, policy := range []string{"round_robin", "random", "least_load", "power_of_two", replay.ByPrefix} {
		run, err := choices(policy, 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := run(100); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
		if got := testing.AllocsPerRun(10, func() { _ = run(1) }); got != 0 {
			t.Errorf("%s: %v allocations a choice; want none", policy, got)
		}
	}
	if _, err := choices("by_name", 10); err == nil {
		t.Error("an unknown policy chooses")
	}
	run, err := choices("random", 1)
	if err != nil {
		t.Fatal(err)
	}
	if run(1) == nil {
		t.Error("one engine is a pair")
	}
}
