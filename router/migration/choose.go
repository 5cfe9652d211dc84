package migration

import (
	"cmp"
	"slices"

	"pdrouter/router/fleet"
)

// offer is KV that an engine may be given before requests need it there.
type offer struct {
	c      *conversation
	role   fleet.Role    // of the engine that is given it
	from   *fleet.Engine // that has it
	run    uint64        // of from
	to     *fleet.Engine
	tokens int
	worth  float64 // beside other offers
}

// choose returns what of the offers is taken, in this order: what is worth most first, if it is wanted and there is room for its tokens.
// Of offers that are worth the same, the first is first. It changes the order of offers.
func choose(offers []offer, room int, wanted func(*offer) bool) (out []offer) {
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(b.worth, a.worth) })
	for i := range offers {
		if o := &offers[i]; o.tokens <= room && wanted(o) {
			room -= o.tokens
			out = append(out, *o)
		}
	}
	return out
}
