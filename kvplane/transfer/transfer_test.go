package transfer

import (
	"strings"
	"testing"
)

func TestID(t *testing.T) {
	id := NewID()
	got, err := ParseID(id.String())
	if err != nil || got != id {
		t.Errorf("got %v, %v; want %v", got, err, id)
	}
	for _, bad := range []string{"", "12", strings.Repeat("0", 32), strings.Repeat("G", 32), strings.Repeat("A", 32), strings.Repeat("a", 33)} {
		if _, err := ParseID(bad); err == nil {
			t.Errorf("%q was taken for a transfer id", bad)
		}
	}
}
