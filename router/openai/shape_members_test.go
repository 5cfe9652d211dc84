package openai

import (
	"testing"

	"pdrouter/router/openai/jsonscan"
)

// TestVocabulary finds every member of every shape by its key, and none by another.
func TestVocabulary(t *testing.T) {
	for s := range formats {
		for _, v := range []*vocabulary{formats[s].top, formats[s].sampling} {
			if v == nil {
				continue
			}
			n := 0
			for i := range v {
				name := v[i].name
				if name == "" {
					continue
				}
				n++
				for _, key := range []string{name, name + "x", name[1:], ""} {
					if got := v.find([]byte(key), jsonscan.KeySum([]byte(key))); (got == &v[i].member) != (key == name) {
						t.Errorf("%s: %q finds %v", Shape(s), key, got)
					}
				}
			}
			if n == 0 || n > len(v)/2 {
				t.Errorf("%s: %d members in %d places", Shape(s), n, len(v))
			}
		}
	}
}
