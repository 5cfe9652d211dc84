package configfile_test

import (
	"strings"
	"testing"
)

// TestCheckWarnsOfNoCost: that requests are to wait for room, and those of no model do, is warned of.
func TestCheckWarnsOfNoCost(t *testing.T) {
	for policy, warned := range map[string]bool{
		"{}":                                 false,
		"{default: {objective: {ttft: 1s}}}": false,
		"{default: {policy: roles}}":         true,
		"{default: {decode: round_robin}}":   true,
		"{default: {policy: roles}, rules: [{name: r, models: [m], policy: cost}]}": false,
	} {
		out, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
queue: {by_objective: true}
policy: `+policy+"\n")
		if err != nil || strings.Contains(out, "WARNING: queue.by_objective has no effect: no model has the policy cost") != warned {
			t.Errorf("%s: %v\n%s", policy, err, out)
		}
	}
}
