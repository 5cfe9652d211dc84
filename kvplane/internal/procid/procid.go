// Package procid names processes beyond their numbers, so that it can be proven that one of them is dead. The agent's
// owner asks it about peers on its host, and transport tcp about the memory of one. It owns no state.
package procid

import "pdrouter/metadata"

// CanProbe says that two processes share the kernel and the namespaces in which their numbers count, so that one can
// judge the other.
func CanProbe(self, p metadata.Process) bool {
	return !self.IsZero() && self.Boot == p.Boot && self.Namespaces == p.Namespaces && p.PID > 0 && p.Started > 0
}
