package configfile_test

import (
	"strings"
	"testing"
)

// TestCheckWarnsOfLongPins: what engines have freed by then, unless they are told otherwise, is warned of.
func TestCheckWarnsOfLongPins(t *testing.T) {
	for value, warned := range map[string]bool{"0s": false, "5m": false, "480s": true, "1h": true} {
		out, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
migration: {mode: enabled, pinned_for: `+value+`}
`)
		if err != nil || strings.Contains(out, "WARNING: migration.pinned_for is") != warned {
			t.Errorf("%s: %v\n%s", value, err, out)
		}
	}
}
