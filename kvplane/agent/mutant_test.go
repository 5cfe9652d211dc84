package agent

import (
	"os"
	"slices"
	"testing"
	"time"

	"pdrouter/internal/racetest"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/transport"
)

// mutant is a version of the plane that is wrong in one way. It stands around the owner's seams and is in no binary.
type mutant struct {
	name      string
	rare      bool // needs hundreds of seeds
	tables    bool // is looked for where every table is small
	apply     func(s *sim, n *simNode, real applier) applier
	transport func(n *simNode, t transport.Transport) transport.Transport
	ask       func(n *simNode, ask asker) asker
	agree     transport.Agreement
	hear      func(c *simScheduler, r *sched.RankReport) // what a scheduler makes of a report
}

// applier is the place where an event meets its core.
type applier func(q delivery, out []core.Effect) []core.Effect

// seedsUntilFound counts seeds until the simulator finds a mutant, at most limit, and says what it has broken.
func (m *mutant) seedsUntilFound(start uint64, limit int) (int, *simFailure) {
	for i := range limit {
		if r := runSim(m.world(start+uint64(i)), m, nil, false); r.failure != nil {
			return i + 1, r.failure
		}
	}
	return limit + 1, nil
}

// world is the one in which the mutant, and the true plane after it, plays a seed.
func (m *mutant) world(seed uint64) simOptions {
	o := simSeed(seed)
	o.tables = m.tables
	return o
}

const mutantLimit = 1000 // seeds

// TestMutants plays wrong versions of the plane: the simulator must find each of them, and nothing in the true one.
// KVPLANE_MUTANTS=20 starts as many searches for each.
func TestMutants(t *testing.T) {
	starts := 3
	if racetest.Enabled() || testing.Short() {
		starts = 1
	}
	all := os.Getenv("KVPLANE_MUTANTS") != ""
	if all {
		starts = 20
	}
	passed := map[simOptions]bool{}
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			starts := starts
			if m.rare && !all {
				starts = 1
			}
			if m.rare && racetest.Enabled() && !all {
				t.Skip("takes too many seeds with the race detector; make mutants plays it")
			}
			var needed []int
			rules := map[string]int{}
			begun := time.Now()
			for i := range starts {
				start := uint64(i+1) * 10_000
				n, failure := m.seedsUntilFound(start, mutantLimit)
				if failure == nil {
					t.Fatalf("not found in %d seeds from %d on", mutantLimit, start)
				}
				needed = append(needed, n)
				rules[failure.rule]++
				for seed := start; seed < start+uint64(n); seed++ {
					world := m.world(seed)
					if passed[world] {
						continue
					}
					if r := runSim(world, nil, nil, false); r.failure != nil {
						t.Fatalf("seed %d: the true plane: %s", seed, r.failure)
					}
					passed[world] = true
				}
			}
			slices.Sort(needed)
			t.Logf("median %d, most %d of %d searches; broken %v; %v", needed[len(needed)/2], needed[len(needed)-1], starts, rules, time.Since(begun).Round(time.Millisecond))
		})
	}
}
