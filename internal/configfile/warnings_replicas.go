package configfile

import (
	"fmt"

	"pdrouter/internal/field"
)

// validateReplicas checks the number of gateways.
func (c File) validateReplicas() error {
	if c.Replicas < 0 {
		return field.Errorf("replicas", "is %d; want 1 or more", c.Replicas)
	}
	return nil
}

// replicaWarnings are what several gateways lack that know nothing of each other.
func (l *Loaded) replicaWarnings() []string {
	if l.Replicas < 2 || l.Metadata.Store == "redis" {
		return nil
	}
	return []string{fmt.Sprintf("%d gateways without Redis know nothing of each other: a stored response of /v1/responses is found by the one gateway "+
		"that served it, and each lets a tenant use its whole limits; want metadata.store: redis", l.Replicas)}
}
