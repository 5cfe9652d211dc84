package kvplane

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// simBudget is for how long TestSimulator runs; without it, it runs a fixed number of seeds.
const simBudget = "KVPLANE_SIM"

func TestSimulator(t *testing.T) {
	counts := newSimCounts()
	seeds := 300
	if testing.Short() {
		seeds = 50
	}
	budget, _ := time.ParseDuration(os.Getenv(simBudget))
	start := time.Now()
	first := uint64(1)
	if v := os.Getenv("KVPLANE_SEED"); v != "" {
		fmt.Sscan(v, &first)
	}
	for seed := first; ; seed++ {
		if budget > 0 && time.Since(start) > budget || budget <= 0 && counts.seeds >= seeds {
			break
		}
		r := runSim(simSeed(seed), nil, counts, false)
		counts.seeds++
		if r.failure != nil {
			again := runSim(simSeed(seed), nil, nil, true)
			t.Fatalf("seed %d: %s\n%s", seed, r.failure, simTail(again.history, 150)+"\n"+again.failure.String())
		}
	}
	t.Logf("%v\n%s", time.Since(start), counts)
}
