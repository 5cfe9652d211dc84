package kvplane

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
)

// sortedKeys and sortedIDs give maps an order, so that equal events have equal effects.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func sortedIDs[V any](m map[TransferID]V) []TransferID {
	return slices.SortedFunc(maps.Keys(m), func(a, b TransferID) int { return bytes.Compare(a[:], b[:]) })
}
