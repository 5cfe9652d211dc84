package gateway

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/telemetry"
	"pdrouter/router"
	"pdrouter/router/fleet"
)

func TestHealthMetrics(t *testing.T) {
	got := collected(t, func(out *telemetry.Scrape) {
		s := router.Stats{
			Engines:    []router.EngineStats{{Name: "p", State: "slow_start", Share: 0.25}, {Name: "d", State: "open", Ejections: map[string]uint64{"answers": 2}}},
			PanicModes: []fleet.PanicMode{{Model: "tiny", Role: "decode"}},
			PairsOut:   []fleet.PairOut{{Prefill: "p", Decode: "d", State: "half_open", Opened: 3}},
		}
		collectEngines(out, s)
		collectPairs(out, s)
	})
	want := `# TYPE pdrouter_engine_ejections_total counter
pdrouter_engine_ejections_total{engine="d",reason="answers"} 2
# TYPE pdrouter_engine_prompt_ratio gauge
pdrouter_engine_prompt_ratio{engine="d"} 0
pdrouter_engine_prompt_ratio{engine="p"} 0
# TYPE pdrouter_engine_requests_in_flight gauge
pdrouter_engine_requests_in_flight{engine="d"} 0
pdrouter_engine_requests_in_flight{engine="p"} 0
# TYPE pdrouter_engine_share gauge
pdrouter_engine_share{engine="d"} 0
pdrouter_engine_share{engine="p"} 0.25
# TYPE pdrouter_engine_state gauge
pdrouter_engine_state{engine="d",state="open"} 1
pdrouter_engine_state{engine="p",state="slow_start"} 1
# TYPE pdrouter_engine_streams gauge
pdrouter_engine_streams{engine="d"} 0
pdrouter_engine_streams{engine="p"} 0
# TYPE pdrouter_engine_up gauge
pdrouter_engine_up{engine="d"} 0
pdrouter_engine_up{engine="p"} 0
# TYPE pdrouter_engine_wait_seconds gauge
pdrouter_engine_wait_seconds{engine="d"} 0
pdrouter_engine_wait_seconds{engine="p"} 0
# TYPE pdrouter_pair_ejections_total counter
pdrouter_pair_ejections_total{decode="d",prefill="p"} 3
# TYPE pdrouter_pair_state gauge
pdrouter_pair_state{decode="d",prefill="p",state="half_open"} 1
# TYPE pdrouter_pairs_ready gauge
pdrouter_pairs_ready 0
# TYPE pdrouter_panic_mode gauge
pdrouter_panic_mode{model="tiny",role="decode"} 1
`
	if d := cmp.Diff(got, want); d != "" {
		t.Errorf("got(-) want(+):\n%s", d)
	}
}
