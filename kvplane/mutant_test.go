package kvplane

import (
	"pdrouter/metadata"
)

// mutant is a version of the plane that is wrong in one way. It stands around the owner's seams and is in no binary.
type mutant struct {
	name      string
	apply     func(s *sim, n *simNode, core func(queued, []effect) []effect) func(queued, []effect) []effect
	transport func(s *sim, n *simNode, t Transport) Transport
	ask       func(n *simNode, ask asker) asker
	report    func(r Report) Report
}

var _ asker = func(metadata.Incarnation, func([]metadata.Record, error)) {}
