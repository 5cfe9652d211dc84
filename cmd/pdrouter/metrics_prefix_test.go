package main

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pdrouter/policies/prefixes"
	"pdrouter/router"
)

func TestPrefixMetrics(t *testing.T) {
	var s router.Stats
	registry := prometheus.NewRegistry()
	registry.MustRegister(newPrefixMetrics(func() router.Stats { return s }))
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d series without an index, %v; want none", n, err)
	}
	s.Prefixes = &prefixes.Stats{Links: 1, Bound: 2, Bytes: 3, Looked: 4, Known: 5, Evicted: 6}
	want := `
# HELP pdrouter_prefix_bytes Memory for them, whether it was touched or not.
# TYPE pdrouter_prefix_bytes gauge
pdrouter_prefix_bytes 3
# HELP pdrouter_prefix_entries Pieces of prompts that are remembered with the engines that were given them.
# TYPE pdrouter_prefix_entries gauge
pdrouter_prefix_entries 1
# HELP pdrouter_prefix_evicted_total Pieces that were forgotten to make room.
# TYPE pdrouter_prefix_evicted_total counter
pdrouter_prefix_evicted_total 6
# HELP pdrouter_prefix_hits_total Pieces of prompts that the index had for some engine, chosen or not.
# TYPE pdrouter_prefix_hits_total counter
pdrouter_prefix_hits_total 5
# HELP pdrouter_prefix_lookups_total Pieces of prompts that were looked up in the index.
# TYPE pdrouter_prefix_lookups_total counter
pdrouter_prefix_lookups_total 4
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
