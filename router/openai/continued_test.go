package openai

import (
	"strings"
	"testing"
)

// A body is not continued if what the second engine needs of it besides the prompt is long, as that is kept as long as the stream runs.
func TestLongMembersAreNotContinued(t *testing.T) {
	for _, size := range []int{10, maxContinued - 200, maxContinued} {
		b, e := ParseBody(ShapeCompletions, []byte(`{"model":"m","prompt":"p","temperature":0,"stream":true,"user":"`+strings.Repeat("u", size)+`"}`), Limits{})
		if e != nil {
			t.Fatal(e)
		}
		if c, ok := ContinuationOf(b); ok != (size < maxContinued) || len(c.Keep) > maxContinued {
			t.Errorf("%d bytes: %v, %d are kept", size, ok, len(c.Keep))
		}
	}
}
