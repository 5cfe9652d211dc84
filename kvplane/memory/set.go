package memory

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// Set is registered memory of any type, sorted by address, which is one space for all types, without overlap.
type Set []Region

// NewSet sorts the memory and refuses what is empty, wraps around or overlaps.
func NewSet(memory []Region) (Set, error) {
	s := Set(slices.SortedFunc(slices.Values(memory), func(a, b Region) int { return cmp.Compare(a.Base, b.Base) }))
	for i, m := range s {
		switch {
		case m.Base == 0 || m.Length == 0 || m.Base+m.Length < m.Base:
			return nil, fmt.Errorf("memory at %#x of %d bytes is empty or wraps around", m.Base, m.Length)
		case i > 0 && s[i-1].Base+s[i-1].Length > m.Base:
			return nil, fmt.Errorf("memory at %#x overlaps memory at %#x", m.Base, s[i-1].Base)
		}
	}
	return s, nil
}

// Holds says whether every byte of the range lies in one span. It is safe against wrap-around.
func (s Set) Holds(address, length uint64) bool {
	_, ok := s.Find(address, length)
	return ok
}

// Find returns the span in which every byte of the range lies.
func (s Set) Find(address, length uint64) (Region, bool) {
	i := sort.Search(len(s), func(i int) bool { return s[i].Base > address }) - 1
	if i < 0 {
		return Region{}, false
	}
	offset := address - s[i].Base
	return s[i], offset <= s[i].Length && length <= s[i].Length-offset
}
