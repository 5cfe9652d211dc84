package router

import (
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet/health"
)

// pairStates returns what is known of every prefill engine with every decode engine of its model, model by model.
func (f *fleet) pairStates() []metadata.PairState {
	out := make([]metadata.PairState, 0, len(f.couples))
	for _, c := range f.couples {
		out = append(out, f.pairState(c))
	}
	return out
}

// pairState says what is known of a pair.
func (f *fleet) pairState(c *couple) metadata.PairState {
	s := f.handshaken(c)
	for _, e := range []*engine{c.prefill, c.decode} {
		if !s.Warm && e.draining.Load() {
			s.Why = e.name + whyDrained
		}
	}
	return s
}

// handshaken says what is known of a pair, whether it is to be used or not.
func (f *fleet) handshaken(c *couple) metadata.PairState {
	s := metadata.PairState{Model: c.model, Prefill: c.prefill.name, Decode: c.decode.name}
	pair, err := f.runsOf(c)
	var why *metadata.Unpairable
	switch {
	case errors.As(err, &why):
		s.Reason, s.Why = why.Reason.String(), why.Text
	case errors.Is(err, errNoRecords):
		s.Reason, s.Why = metadata.IncompleteRanks.String(), "no records of "+f.unpublished(c)
	case err != nil:
		s.Why = err.Error()
	default:
		s.Pairable = true
	}
	for _, e := range []*engine{c.prefill, c.decode} {
		if e.down.Load() {
			s.Why = e.name + " is down"
			return s
		}
	}
	if !s.Pairable {
		return s
	}
	if s.Warm = f.handshakes.Ready(pair); s.Warm {
		return s
	}
	if at := c.circuitAt(time.Now()); at != health.Closed {
		s.Why = "transfers failed; circuit " + at.String()
		return s
	}
	s.Why = "the handshake is under way"
	if err := c.last(pair); err != nil {
		s.Why = err.Error()
	}
	return s
}

// whyDrained is behind the name of an engine for which its pairs need not be warm.
const whyDrained = " is to be drained"

// unpublished names the engine of a couple that has no records.
func (f *fleet) unpublished(c *couple) string {
	if len(f.records(c.prefill)) == 0 {
		return c.prefill.name
	}
	return c.decode.name
}
