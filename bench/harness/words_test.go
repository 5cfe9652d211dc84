package harness

import "testing"

// TestHasWords: what -only takes.
func TestHasWords(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"pull c=1", "pull c=1", true},
		{"pull c=16", "pull c=1", false},
		{"pull c=1 stream", "c=1", true},
		{"pull c=16 beside pull c=1", "c=1", true},
		{"pull c=16", "c=", true},
		{"push", "pull", false},
		{"prefill fails: reset", "fails: reset", true},
		{"prefill fails: refused", "refuse", false},
		{"as recorded, 0.5/s", "5/s", false},
		{"as recorded, 1.5/s", "1", false},
		{"2P2D, least_load, 1.5/s", "2P2D", true},
		{"2P2D, least_load, 1.5/s", "1.5/s", true},
		{"2P2D, least_load, 1.5/s", "load", false},
		{"prompts ÷ 4, 2/s", "prompts ÷ 4", true},
		{"nixl 1,024 blocks", "nixl 1", false},
		{"nixl 1,024 blocks", "1,024", true},
		{"anything", "", true},
		{"", "", true},
		{"", "pull", false},
	} {
		if got := hasWords(tt.name, tt.text); got != tt.want {
			t.Errorf("%q in %q: got %t", tt.text, tt.name, got)
		}
	}
}
