// Package bench names the suites that "pdrouter bench" measures. What they measure with is in the packages below it:
// harness runs systems beside each other, load and sim and fake are what stands around them, report is what comes out.
package bench

import (
	"fmt"
	"slices"
	"strings"

	"pdrouter/bench/harness"
	"pdrouter/bench/suites/fair"
	"pdrouter/bench/suites/fault"
	"pdrouter/bench/suites/handover"
	"pdrouter/bench/suites/idle"
	"pdrouter/bench/suites/overhead"
	"pdrouter/bench/suites/pair"
	"pdrouter/bench/suites/plane"
	"pdrouter/bench/suites/planevllm"
	"pdrouter/bench/suites/redis"
	"pdrouter/bench/suites/replay"
	"pdrouter/bench/suites/stock"
	"pdrouter/bench/suites/stream"
)

// Suites are all, in the order in which they run.
func Suites() []harness.Suite {
	return slices.Concat(overhead.Suites(), stream.Suites(), []harness.Suite{handover.Suite(), handover.ReferenceSuite(), replay.Suite(), fair.Suite()}, plane.Suites(), pair.Suites(), []harness.Suite{stock.Suite(), planevllm.Suite(), overhead.PrefixSuite(), overhead.TracingSuite(), idle.Suite(), redis.Suite(), fault.Suite()})
}

// Choose returns the suites of the given names in their order; a name such as "overhead" is all that begin with it and a
// slash. No name is all.
func Choose(names []string) ([]harness.Suite, error) {
	if len(names) == 0 {
		return Suites(), nil
	}
	var chosen []harness.Suite
	unknown := slices.Clone(names)
	for _, s := range Suites() {
		if i := slices.IndexFunc(names, func(n string) bool { return s.Name == n || strings.HasPrefix(s.Name, n+"/") }); i >= 0 {
			chosen = append(chosen, s)
			unknown = slices.DeleteFunc(unknown, func(n string) bool { return s.Name == n || strings.HasPrefix(s.Name, n+"/") })
		}
	}
	if len(unknown) > 0 {
		var all []string
		for _, s := range Suites() {
			all = append(all, s.Name)
		}
		return nil, fmt.Errorf("bench: %q is no suite; want one of %s", unknown[0], strings.Join(all, ", "))
	}
	return chosen, nil
}
