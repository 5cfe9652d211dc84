package agent

import "time"

// shrinkSim takes faults, requests and time away from a failing run as long as what is left breaks the same rule.
func shrinkSim(o simOptions, m *mutant, rule string) simOptions {
	fails := func(o simOptions) bool {
		f := runSim(o, m, nil, false).failure
		return f != nil && f.rule == rule
	}
	keep := func(smaller simOptions) bool {
		if smaller == o || !fails(smaller) {
			return false
		}
		o = smaller
		return true
	}
	for changed := true; changed; {
		changed = false
		// Halves of the faults first, then one after the other.
		for size := int(simFaults) / 2; size > 0; size /= 2 {
			for from := 0; from < int(simFaults); from += size {
				smaller := o
				for f := from; f < min(from+size, int(simFaults)); f++ {
					smaller.without[f] = true
				}
				changed = keep(smaller) || changed
			}
		}
		for i := range simRequests {
			smaller := o
			if smaller.only == 0 {
				smaller.only = 1<<simRequests - 1
			}
			smaller.only &^= 1 << i
			if smaller.only != 0 {
				changed = keep(smaller) || changed
			}
		}
		for _, until := range []time.Duration{4 * time.Second, 7 * time.Second, 10 * time.Second} {
			smaller := o
			smaller.until = until
			if until < o.until && keep(smaller) {
				changed = true
				break
			}
		}
	}
	return o
}
