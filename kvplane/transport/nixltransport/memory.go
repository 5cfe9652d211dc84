package nixltransport

import (
	"fmt"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/nixl"
)

// kindOf translates a type of memory.
func kindOf(m memory.Region) (nixl.Kind, error) {
	switch {
	case m.Type == "" || m.Type == "dram":
		return nixl.DRAM, nil
	case m.Type == "vram" && m.Device >= 0:
		return nixl.VRAM, nil
	}
	return 0, fmt.Errorf("memory at %#x is of type %.20q on device %d; want dram, or vram on device 0 or above", m.Base, m.Type, m.Device)
}

// regionOf describes a stretch of registered memory. NIXL numbers devices in VRAM only.
func regionOf(m memory.Region, kind nixl.Kind, address, length uint64) nixl.Region {
	r := nixl.Region{Address: address, Length: length}
	if kind == nixl.VRAM {
		r.Device = uint64(m.Device)
	}
	return r
}

// newSet refuses memory of no known type.
func newSet(regions []memory.Region) (memory.Set, error) {
	for _, m := range regions {
		if _, err := kindOf(m); err != nil {
			return nil, err
		}
	}
	return memory.NewSet(regions)
}

// memoryOf sorts registered memory by its kind: one list for each that there is.
func memoryOf(s memory.Set) ([]nixl.Memory, error) {
	var lists []nixl.Memory
	for _, m := range s {
		kind, err := kindOf(m)
		if err != nil {
			return nil, err
		}
		i := 0
		for i < len(lists) && lists[i].Kind != kind {
			i++
		}
		if i == len(lists) {
			lists = append(lists, nixl.Memory{Kind: kind})
		}
		lists[i].Regions = append(lists[i].Regions, regionOf(m, kind, m.Base, m.Length))
	}
	return lists, nil
}

// sideOf translates the places that a write has on one side. All of them are of one kind, because a list of NIXL's
// is.
type sideOf struct {
	whose string // "this agent's" or "the peer's"
	spans memory.Set
	kind  nixl.Kind
	any   bool // something was translated
}

// region describes a place, or refuses one that is not in registered memory.
func (s *sideOf) region(address, length uint64) (nixl.Region, error) {
	m, ok := s.spans.Find(address, length)
	if !ok {
		return nixl.Region{}, fmt.Errorf("range at %#x of %d bytes is not in %s registered memory", address, length, s.whose)
	}
	kind, err := kindOf(m)
	if err != nil {
		return nixl.Region{}, err
	}
	if s.any && kind != s.kind {
		return nixl.Region{}, fmt.Errorf("range at %#x is in memory of another type than those before it; want one type on %s side", address, s.whose)
	}
	s.kind, s.any = kind, true
	return regionOf(m, kind, address, length), nil
}
