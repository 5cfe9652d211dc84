package fleet

import (
	"testing"

	"pdrouter/policies"
)

// TestAdapterState: an adapter waits for a slot only where others have all of them.
func TestAdapterState(t *testing.T) {
	for name, tt := range map[string]struct {
		slots *AdapterSlots
		want  policies.AdapterState
	}{
		"nothing is said":               {nil, policies.AdapterLoadable},
		"idle":                          {&AdapterSlots{Slots: 1}, policies.AdapterLoadable},
		"loaded and idle":               {&AdapterSlots{Slots: 2, Loaded: []string{"b", "a"}}, policies.AdapterLoaded},
		"another is loaded and idle":    {&AdapterSlots{Slots: 1, Loaded: []string{"b"}}, policies.AdapterLoadable},
		"another is active":             {&AdapterSlots{Slots: 1, Loaded: []string{"b"}, Active: []string{"b"}}, policies.AdapterBlocked},
		"it waits beside another":       {&AdapterSlots{Slots: 2, Loaded: []string{"b"}, Active: []string{"b", "a"}}, policies.AdapterLoadable},
		"it waits while others run":     {&AdapterSlots{Slots: 1, Loaded: []string{"b"}, Active: []string{"b", "a"}}, policies.AdapterBlocked},
		"its requests and others'":      {&AdapterSlots{Slots: 2, Loaded: []string{"a", "b"}, Active: []string{"a", "b"}}, policies.AdapterLoaded},
		"a slot is left beside another": {&AdapterSlots{Slots: 2, Loaded: []string{"b"}, Active: []string{"b"}}, policies.AdapterLoadable},
	} {
		if got := tt.slots.state("a"); got != tt.want {
			t.Errorf("%s: %d; want %d", name, got, tt.want)
		}
	}
}
