package migration

import "slices"

// Reason says why KV is moved.
type Reason uint8

const (
	ForDrain   Reason = iota // its engine drains
	ForRoute                 // a request waits for it, as that is its best path
	ForWarmth                // its target has begun to serve, and has nothing yet
	ForReplica               // many conversations begin with it, and one engine alone has it
	Reasons                  // how many there are
)

func (r Reason) String() string { return [...]string{"drain", "route", "warm", "replicate"}[r] }

// uses reports whether KV is moved for this reason, by the configuration.
func (s *Snapshot) uses(r Reason) bool { return slices.Contains(s.Config.Migration.Uses, r.String()) }
