package fleet

import (
	"errors"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet/health"
)

// PairStates returns what is known of every prefill engine with every decode engine of its model, model by model.
func (f *Fleet) PairStates() []metadata.PairState {
	out := make([]metadata.PairState, 0, len(f.Pairs))
	for _, c := range f.Pairs {
		out = append(out, f.pairState(c))
	}
	return out
}

// pairState says what is known of a pair.
func (f *Fleet) pairState(c *Pair) metadata.PairState {
	s := f.handshaken(c)
	for _, e := range []*Engine{c.Prefill, c.Decode} {
		if !s.Warm && e.Draining.Load() {
			s.Why = e.Name + WhyDrained
		}
	}
	return s
}

// handshaken returns what is known of a pair, whether it may be used or not.
func (f *Fleet) handshaken(c *Pair) metadata.PairState {
	s := metadata.PairState{Model: c.Model, Prefill: c.Prefill.Name, Decode: c.Decode.Name}
	pair, err := f.Runs(c)
	var why *metadata.Unpairable
	switch {
	case errors.As(err, &why):
		s.Reason, s.Why = why.Reason.String(), why.Text
	case errors.Is(err, ErrNoRecords):
		s.Reason, s.Why = metadata.IncompleteRanks.String(), "no records of "+f.unpublished(c)
	case err != nil:
		s.Why = err.Error()
	default:
		s.Pairable = true
	}
	for _, e := range []*Engine{c.Prefill, c.Decode} {
		if e.Down.Load() {
			s.Why = e.Name + " is down"
			return s
		}
	}
	if !s.Pairable {
		return s
	}
	if s.Warm = f.handshakes.Ready(pair); s.Warm {
		return s
	}
	if at := c.Circuit(time.Now()); at != health.Closed {
		s.Why = "transfers failed; circuit " + at.String()
		return s
	}
	s.Why = "the handshake is under way"
	if err := c.LastError(pair); err != nil {
		s.Why = err.Error()
	}
	return s
}

// WhyDrained follows the name of an engine whose pairs need no handshake.
const WhyDrained = " is to be drained"

// unpublished names the engine of a pair that has no records.
func (f *Fleet) unpublished(c *Pair) string {
	if len(f.Records(c.Prefill)) == 0 {
		return c.Prefill.Name
	}
	return c.Decode.Name
}
