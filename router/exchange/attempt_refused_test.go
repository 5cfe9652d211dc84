package exchange

import (
	"testing"

	"pdrouter/router/dispatch"
)

// TestPrefillRefused: of a prefill leg that has ended nothing is left at the engine only if it was not begun, or the engine is another run.
func TestPrefillRefused(t *testing.T) {
	for k := dispatch.EvPrefillUsable; k <= dispatch.EvPrefillLate; k++ {
		var a attempt
		a.prefill.Begin()
		a.prefillEnded(dispatch.Event{Kind: k})
		if want := k == dispatch.EvPrefillRefused || k == dispatch.EvPrefillMoved; a.prefillLeftNothing() != want {
			t.Errorf("%v: refused %v; want %v", k, a.prefillLeftNothing(), want)
		}
	}
}
