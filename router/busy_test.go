package router_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestBusyRanks: an engine is needed if one of its data-parallel ranks is, and each of them for itself.
func TestBusyRanks(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
	s.Config.Models[0].Engines[0].DataParallel = 3
	r, err := router.New(s.Config, router.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Debug().Engines()[1].AddInFlight(1)
	for name, want := range map[string]bool{"decode-0": true, "decode-0.dp0": false, "decode-0.dp1": true, "decode-1": false, "none": false} {
		if got := r.Busy(name); got != want {
			t.Errorf("%s is needed: %v; want %v", name, got, want)
		}
	}
	for i, of := range []string{"decode-0", "decode-0", "decode-0", ""} {
		if e := r.Stats().Engines[i]; e.Of != of {
			t.Errorf("%s is of %q; want %q", e.Name, e.Of, of)
		}
	}
}
