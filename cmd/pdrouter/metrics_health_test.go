package main

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pdrouter/router"
	"pdrouter/router/fleet"
)

func TestHealthMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newHealthMetrics(func() router.Stats {
		return router.Stats{
			Engines:    []router.EngineStats{{Name: "p", State: "slow_start", Share: 0.25}, {Name: "d", State: "open", Ejections: map[string]uint64{"answers": 2}}},
			PanicModes: []fleet.PanicMode{{Model: "tiny", Role: "decode"}},
			PairsOut:   []fleet.PairOut{{Prefill: "p", Decode: "d", State: "half_open", Opened: 3}},
		}
	}))
	want := `
# HELP pdrouter_engine_ejections_total Times the engine was taken out though it could be reached.
# TYPE pdrouter_engine_ejections_total counter
pdrouter_engine_ejections_total{engine="d",reason="answers"} 2
# HELP pdrouter_engine_share Part of its share of the requests that the engine may get: below 1 in a slow start, 0 while it is out.
# TYPE pdrouter_engine_share gauge
pdrouter_engine_share{engine="d"} 0
pdrouter_engine_share{engine="p"} 0.25
# HELP pdrouter_engine_state 1 for the state that the engine is in.
# TYPE pdrouter_engine_state gauge
pdrouter_engine_state{engine="d",state="open"} 1
pdrouter_engine_state{engine="p",state="slow_start"} 1
# HELP pdrouter_pair_ejections_total Times a pair was taken out as transfers between its engines failed; only of pairs that were.
# TYPE pdrouter_pair_ejections_total counter
pdrouter_pair_ejections_total{decode="d",prefill="p"} 3
# HELP pdrouter_pair_state 1 for the state of the circuit of each pair that was ever taken out: closed, open or half_open.
# TYPE pdrouter_pair_state gauge
pdrouter_pair_state{decode="d",prefill="p",state="half_open"} 1
# HELP pdrouter_panic_mode 1 while ejected engines of the role get requests because too few others are left.
# TYPE pdrouter_panic_mode gauge
pdrouter_panic_mode{model="tiny",role="decode"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
