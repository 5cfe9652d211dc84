package edge

import (
	"net/http"
	"testing"
	"time"

	"pdrouter/router/openai"
)

func TestObjectiveOf(t *testing.T) {
	of := func(fields ...string) (openai.Objective, *openai.Error) {
		h := http.Header{}
		for i := 0; i < len(fields); i += 2 {
			h.Set(fields[i], fields[i+1])
		}
		return ObjectiveOf(func(name string) []byte { return []byte(h.Get(name)) })
	}
	for _, tt := range []struct {
		fields []string
		want   openai.Objective
	}{
		{nil, openai.Objective{}},
		{[]string{"X-Slo-Ttft-Ms", "250"}, openai.Objective{TTFT: 250 * time.Millisecond}},
		{[]string{"X-Slo-Itl-Ms", "12.5", "X-Llm-D-Slo-Ttft-Ms", "3600000"}, openai.Objective{TTFT: time.Hour, ITL: 12500 * time.Microsecond}},
		{[]string{"X-Slo-Ttft-Ms", "1", "X-Llm-D-Slo-Ttft-Ms", "wrong, but not asked"}, openai.Objective{TTFT: time.Millisecond}},
	} {
		if got, e := of(tt.fields...); got != tt.want || e != nil {
			t.Errorf("%v: got %+v, %v", tt.fields, got, e)
		}
	}
	for _, bad := range []string{"0", "-1", "1e-320", "1e-7", "NaN", "Inf", "1e300", "3600001", "1s", " "} {
		if got, e := of("X-Slo-Itl-Ms", bad); e == nil || e.Param != "X-Slo-Itl-Ms" || got != (openai.Objective{}) {
			t.Errorf("%q: got %+v, %v", bad, got, e)
		}
	}
}
