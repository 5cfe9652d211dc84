package exchange

import (
	"testing"

	"pdrouter/router/dispatch"
)

// TestPrefillLeftNothing: of a prefill leg that has ended nothing is left at the engine only if it was not begun, or the engine is another run.
func TestPrefillLeftNothing(t *testing.T) {
	for k := dispatch.EvPrefillUsable; k <= dispatch.EvPrefillLate; k++ {
		var a attempt
		a.prefill.Begin()
		a.prefillEnded(dispatch.Event{Kind: k})
		if want := k == dispatch.EvPrefillRefused || k == dispatch.EvPrefillMoved; a.prefillLeftNothing() != want {
			t.Errorf("%v: left nothing %v; want %v", k, a.prefillLeftNothing(), want)
		}
	}
}
