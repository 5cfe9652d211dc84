package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "1,4-5,9": {1, 4, 5, 9}} {
		if got, err := parseCPUs(list); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%q: got %v, %v; want %v", list, got, err, want)
		}
	}
	for _, list := range []string{"", "a", "3-1", "1,", "-2"} {
		if got, err := parseCPUs(list); err == nil {
			t.Errorf("%q: got %v; want an error", list, got)
		}
	}
}
