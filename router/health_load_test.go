package router

import "testing"

// TestParseLoad reads what engines say, and takes nothing for an answer that is none.
func TestParseLoad(t *testing.T) {
	for _, row := range []struct {
		text string
		want load
		ok   bool
	}{
		{"# HELP vllm:num_requests_running n\nvllm:num_requests_running{engine=\"0\",model_name=\"a} 9\"} 2.0\nvllm:num_requests_waiting{engine=\"0\"} 1.0\n", load{2, 1}, true},
		{"vllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_running{engine=\"1\"} 3.0\nvllm:num_requests_waiting 0", load{3, 0}, true},
		{"vllm:num_requests_running 0\nvllm:num_requests_waiting_by_reason{reason=\"deferred\"} 4\n", load{}, false},
		{"vllm:num_requests_waiting 0\n", load{}, false},
		{"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", load{}, false},
		{"", load{}, false},
	} {
		if got, ok := parseLoad([]byte(row.text)); ok != row.ok || ok && got != row.want {
			t.Errorf("%q: %+v, %v; want %+v, %v", row.text, got, ok, row.want, row.ok)
		}
	}
}
