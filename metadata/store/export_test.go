package store

import (
	"maps"
	"slices"
	"time"

	"pdrouter/metadata"
)

// Remembered returns the engines whose generation is remembered.
func (m *Memory) Remembered() []string { return slices.Collect(maps.Keys(m.engines)) }

// Until returns the end of a rank's lease.
func (m *Memory) Until(engine string, rank metadata.Rank) time.Time {
	return m.engines[engine].ranks[rank].until
}
