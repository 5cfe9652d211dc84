package router_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestInFlightOfRanks: an engine has the requests of its data-parallel ranks, and each of them its own.
func TestInFlightOfRanks(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
	s.Config.Models[0].Engines[0].DataParallel = 3
	r, err := router.New(s.Config, router.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, e := range r.Debug().Engines() {
		e.AddInFlight(int64(1 + i))
	}
	for name, want := range map[string]int64{"decode-0": 6, "decode-0.dp1": 2, "decode-1": 4, "none": 0} {
		if got := r.InFlight(name); got != want {
			t.Errorf("%s has %d; want %d", name, got, want)
		}
	}
	for i, of := range []string{"decode-0", "decode-0", "decode-0", ""} {
		if e := r.Stats().Engines[i]; e.Of != of {
			t.Errorf("%s is of %q; want %q", e.Name, e.Of, of)
		}
	}
}
