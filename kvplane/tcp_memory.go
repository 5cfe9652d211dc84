package kvplane

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// spans is registered memory, sorted by address, without overlap.
type spans []Memory

// newSpans sorts the memory and refuses what is empty, wraps around or overlaps.
func newSpans(memory []Memory) (spans, error) {
	s := append(spans(nil), memory...)
	sort.Slice(s, func(i, j int) bool { return s[i].Base < s[j].Base })
	for i, m := range s {
		switch {
		case m.Type != "" && m.Type != "dram":
			return nil, fmt.Errorf("memory at %#x is of type %q; tcp moves dram only", m.Base, m.Type)
		case m.Base == 0 || m.Length == 0 || m.Base+m.Length < m.Base:
			return nil, fmt.Errorf("memory at %#x of %d bytes is empty or wraps around", m.Base, m.Length)
		case i > 0 && s[i-1].Base+s[i-1].Length > m.Base:
			return nil, fmt.Errorf("memory at %#x overlaps memory at %#x", m.Base, s[i-1].Base)
		}
	}
	return s, nil
}

// holds says whether every byte of the range lies in one span. It is safe against wrap-around.
func (s spans) holds(address, length uint64) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].Base > address }) - 1
	if i < 0 {
		return false
	}
	offset := address - s[i].Base
	return offset <= s[i].Length && length <= s[i].Length-offset
}

// spanBytes is the length of a span as it is told to peers: base and length, little-endian. It is not msgpack's list,
// whose decoder makes room for as many as a list says it has.
const spanBytes = 16

func (s spans) pack() []byte {
	b := make([]byte, 0, spanBytes*len(s))
	for _, m := range s {
		b = binary.LittleEndian.AppendUint64(b, m.Base)
		b = binary.LittleEndian.AppendUint64(b, m.Length)
	}
	return b
}

// unpackSpans decodes and checks a peer's memory.
func unpackSpans(b []byte) (spans, error) {
	if len(b)%spanBytes != 0 {
		return nil, fmt.Errorf("memory of %d bytes is not whole", len(b))
	}
	var out []Memory
	for ; len(b) > 0; b = b[spanBytes:] {
		out = append(out, Memory{Base: binary.LittleEndian.Uint64(b), Length: binary.LittleEndian.Uint64(b[8:])})
	}
	return newSpans(out)
}
