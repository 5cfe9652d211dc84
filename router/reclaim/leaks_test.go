package reclaim

import (
	"os"
	"strings"
	"testing"
)

// TestCausesAreExplained: each reason for which KV stays held is one that operators find explained.
func TestCausesAreExplained(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for s := CauseNone + 1; s < causes; s++ {
		if !strings.Contains(string(doc), "\n| `"+s.String()+"` | ") {
			t.Errorf("%s is not explained", s)
		}
	}
}
