package monitor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/fleet"
)

// adapterSample is a sample as vLLM writes it.
func adapterSample(most int, running, waiting string, at float64) string {
	return fmt.Sprintf("vllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=%q,waiting_lora_adapters=%q} %v\n", most, running, waiting, at)
}

// TestParseAdapterSlots: the latest sample says what is active, earlier ones what was computed with last; what is no sample says nothing.
func TestParseAdapterSlots(t *testing.T) {
	const now = 1.789828498802105e+09
	for name, row := range map[string]struct {
		text, label string
		want        *fleet.AdapterSlots
	}{
		"nothing":             {"# HELP vllm:lora_requests_info n\nvllm:num_requests_running 1\nvllm:lora_requests_info_x{max_lora=\"1\"} 1\n", "", nil},
		"idle from its start": {adapterSample(2, "", "", now), "", &fleet.AdapterSlots{Slots: 2}},
		"one moment": {adapterSample(4, "a,b", "b, c", now), "",
			&fleet.AdapterSlots{Slots: 4, Loaded: []string{"a", "b"}, Active: []string{"a", "b", "c"}}},
		"idle now": {adapterSample(2, "a", "", now-3) + adapterSample(2, "", "", now) + adapterSample(2, "b", "", now-2) + adapterSample(2, "c", "", now-4), "",
			&fleet.AdapterSlots{Slots: 2, Loaded: []string{"b", "a"}}},
		"within a second": {adapterSample(1, "a", "", now+.25) + adapterSample(1, "b", "", now+.5), "",
			&fleet.AdapterSlots{Slots: 1, Loaded: []string{"b"}, Active: []string{"b"}}},
		"more than slots": {adapterSample(1, "a,b", "", now), "", &fleet.AdapterSlots{Slots: 1, Loaded: []string{"a"}, Active: []string{"a", "b"}}},
		"labels in another order": {"vllm:lora_requests_info{waiting_lora_adapters=\"\",running_lora_adapters=\"a\",max_lora=\"1\"} 5\n", "",
			&fleet.AdapterSlots{Slots: 1, Loaded: []string{"a"}, Active: []string{"a"}}},
		"another scheduler's":         {"vllm:lora_requests_info{engine=\"1\",max_lora=\"1\",running_lora_adapters=\"a\"} 5\n", `engine="0"`, nil},
		"of no scheduler":             {adapterSample(1, "a", "", now), `engine="0"`, &fleet.AdapterSlots{Slots: 1, Loaded: []string{"a"}, Active: []string{"a"}}},
		"without slots":               {adapterSample(0, "a", "", now), "", nil},
		"too many slots":              {adapterSample(maxAdapters+1, "a", "", now), "", nil},
		"no time":                     {strings.ReplaceAll(adapterSample(1, "a", "", 5), " 5", " NaN") + "vllm:lora_requests_info{max_lora=\"1\"}\n", "", nil},
		"a name with a label in it":   {adapterSample(1, `x",max_lora="9`, "", now), "", &fleet.AdapterSlots{Slots: 1, Loaded: []string{`x\`}, Active: []string{`x\`}}},
		"a name that is far too long": {adapterSample(1, strings.Repeat("a", maxModelName+1), "", now), "", &fleet.AdapterSlots{Slots: 1}},
	} {
		if d := cmp.Diff(parseAdapterSlots([]byte(row.text), row.label), row.want); d != "" {
			t.Errorf("%s (-got +want):\n%s", name, d)
		}
	}
}

// FuzzAdapterSlots reads metrics that engines might send.
func FuzzAdapterSlots(f *testing.F) {
	f.Add(adapterSample(2, "a,b", "c", 5))
	f.Add("vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\\\"} 1e309\n")
	f.Fuzz(func(t *testing.T, text string) {
		if s := parseAdapterSlots([]byte(text), ""); s != nil && (s.Slots < 1 || len(s.Loaded) > s.Slots || len(s.Active) > maxAdapters) {
			t.Errorf("%q: %+v", text, s)
		}
	})
}
