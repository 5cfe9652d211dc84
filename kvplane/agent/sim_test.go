package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/golden"
	"pdrouter/internal/racetest"
)

// simBudget is for how long TestSimulator runs; without it, it runs a fixed number of seeds. simFirst is where it
// begins; without it, at 1, or where the clock says if there is a budget.
const (
	simBudget = "KVPLANE_SIM"
	simFirst  = "KVPLANE_SEED"
	simNew    = "KVPLANE_SIM_SAVE" // where a failing seed is written to
)

// TestSimulator plays seed after seed. With a budget it prints how far it is, and at the end it must have reached every
// fault and every ending.
func TestSimulator(t *testing.T) {
	budget, err := time.ParseDuration(os.Getenv(simBudget))
	long := err == nil && budget > 0
	first, err := strconv.ParseUint(os.Getenv(simFirst), 10, 64)
	if err != nil {
		first = 1
		if long {
			first = uint64(time.Now().Unix()) * 1_000_000
		}
	}
	seeds, workers := 400, 1
	switch {
	case long:
		seeds, workers = 1<<62, runtime.GOMAXPROCS(0)
	case racetest.Enabled(), testing.Short():
		seeds = 40
	}
	r := &simRunner{next: first, end: first + uint64(seeds), counts: newSimCounts(), begun: time.Now()}
	if long {
		r.deadline = r.begun.Add(budget)
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(r.work)
	}
	group.Wait()
	if r.failed != nil {
		t.Fatal(simReport(*r.failed, os.Getenv(simNew)))
	}
	t.Logf("from seed %d in %v\n%s", first, time.Since(r.begun).Round(time.Millisecond), r.counts)
	if !long {
		return
	}
	for _, what := range r.counts.missing() {
		t.Errorf("never reached: %s", what)
	}
}

// simRunner hands seeds to its workers. Each seed is a world of its own.
type simRunner struct {
	begun, deadline time.Time

	mu     sync.Mutex
	next   uint64
	end    uint64
	looked time.Time
	counts *simCounts
	failed *simOptions
}

func (r *simRunner) work() {
	counts := newSimCounts()
	for {
		r.mu.Lock()
		seed := r.next
		done := r.failed != nil || seed >= r.end || !r.deadline.IsZero() && time.Now().After(r.deadline)
		if !done {
			r.next++
		}
		r.counts.add(counts)
		counts = newSimCounts()
		if now := time.Now(); !r.deadline.IsZero() && now.Sub(r.looked) > simLook {
			r.looked = now
			fmt.Printf("%6.0f s: %d seeds, %d events, %.0f events/s\n", now.Sub(r.begun).Seconds(), r.counts.seeds, r.counts.events,
				float64(r.counts.events)/now.Sub(r.begun).Seconds())
		}
		r.mu.Unlock()
		if done {
			return
		}
		o := simSeed(seed)
		result := runSim(o, nil, counts, false)
		counts.seeds++
		if result.failure != nil {
			r.mu.Lock()
			if r.failed == nil || o.seed < r.failed.seed {
				r.failed = &o
			}
			r.mu.Unlock()
		}
	}
}

// simReport shrinks a failing run and shows what is left of it. With a folder it is kept there.
func simReport(o simOptions, folder string) string {
	before := runSim(o, nil, nil, false)
	o = shrinkSim(o, nil, before.failure.rule)
	again := runSim(o, nil, nil, true)
	text := fmt.Sprintf("%s\n%s\n%s\nto keep it: write this into testdata/sim/%d.txt\n\n%s", before.failure, simTail(again.history, 120), again.failure, o.seed, o)
	if folder != "" {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.txt", o.seed)), []byte(fmt.Sprintf("# %s\n%s", again.failure, o)), 0o644); err != nil {
			text += err.Error()
		}
	}
	return text
}

// TestSimulatorSeeds replays every run that has ever failed.
func TestSimulatorSeeds(t *testing.T) {
	files, err := filepath.Glob("testdata/sim/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o, err := parseSimOptions(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if r := runSim(o, nil, nil, false); r.failure != nil {
				t.Fatal(simReport(o, ""))
			}
		})
	}
}

// seedsOf is how many seeds a test plays: few with the race detector, which is what they are slow with, unless KVPLANE_SEEDS=all.
func seedsOf(all, few uint64) uint64 {
	if (racetest.Enabled() || testing.Short()) && os.Getenv("KVPLANE_SEEDS") != "all" {
		return few
	}
	return all
}

// TestSimulatorRepeats plays seeds twice: whatever happens, it happens again.
func TestSimulatorRepeats(t *testing.T) {
	for seed := range seedsOf(30, 4) {
		a, b := runSim(simSeed(seed), nil, nil, false), runSim(simSeed(seed), nil, nil, true)
		if a.hash != b.hash || a.events != b.events {
			t.Errorf("seed %d: %d events with hash %x, then %d with %x", seed, a.events, a.hash, b.events, b.hash)
		}
	}
}

// tracesFile holds the hash of the trace of each seed from 1 on, one on a line. A trace has the time of every event, every
// byte that is sent, what is written and what is reported.
const tracesFile = "testdata/traces.txt"

// TestSimulatorTraces plays seeds as they were played before: a change of the code that changes no behaviour changes no
// trace. KVPLANE_SEEDS=all plays all that are known; -update takes the traces as they are now.
func TestSimulatorTraces(t *testing.T) {
	raw, err := os.ReadFile(tracesFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(raw))
	if len(want) != 1000 {
		t.Fatalf("%d traces are known; want 1000", len(want))
	}
	if os.Getenv("KVPLANE_SEEDS") != "all" && !golden.Updating() {
		want = want[:seedsOf(50, 10)]
	}
	got := make([]string, len(want))
	for i := range want {
		got[i] = fmt.Sprintf("%016x", runSim(simSeed(uint64(i+1)), nil, nil, false).hash)
	}
	if golden.Updating() {
		golden.Equal(t, tracesFile, strings.Join(got, "\n")+"\n")
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("seed %d: the trace has hash %s; want %s", i+1, got[i], want[i])
		}
	}
}

// TestSimulatorShrinks finds less of a failing run that still fails: here a mutant's.
func TestSimulatorShrinks(t *testing.T) {
	m := &mutant{apply: mutantEarlyFree}
	var o simOptions
	var failure *simFailure
	for seed := uint64(1); failure == nil; seed++ {
		o = simSeed(seed)
		failure = runSim(o, m, nil, false).failure
	}
	less := shrinkSim(o, m, failure.rule)
	after := runSim(less, m, nil, false)
	if after.failure == nil || after.failure.rule != failure.rule {
		t.Fatalf("shrunk to a run that ends in %v; want %v", after.failure, failure)
	}
	if less == o {
		t.Errorf("nothing could be taken away from %v", o)
	}
	if again, err := parseSimOptions(less.String()); err != nil || again != less {
		t.Errorf("%v reads back as %v, %v", less, again, err)
	}
}
