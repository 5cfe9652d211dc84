package tcp

import (
	"encoding/binary"
	"fmt"

	"pdrouter/kvplane/memory"
)

// newDRAM refuses memory that a process cannot read and write by itself.
func newDRAM(regions []memory.Region) (memory.Set, error) {
	for _, m := range regions {
		if m.Type != "" && m.Type != "dram" {
			return nil, fmt.Errorf("memory at %#x is of type %q; tcp moves dram only", m.Base, m.Type)
		}
	}
	return memory.NewSet(regions)
}

// spanBytes is the length of a span as it is told to peers: base and length, little-endian. It is not msgpack's list,
// whose decoder makes room for as many as a list says it has.
const spanBytes = 16

func packSpans(s memory.Set) []byte {
	b := make([]byte, 0, spanBytes*len(s))
	for _, m := range s {
		b = binary.LittleEndian.AppendUint64(b, m.Base)
		b = binary.LittleEndian.AppendUint64(b, m.Length)
	}
	return b
}

// unpackSpans decodes and checks a peer's memory.
func unpackSpans(b []byte) (memory.Set, error) {
	if len(b)%spanBytes != 0 {
		return nil, fmt.Errorf("memory of %d bytes is not whole", len(b))
	}
	var out []memory.Region
	for ; len(b) > 0; b = b[spanBytes:] {
		out = append(out, memory.Region{Base: binary.LittleEndian.Uint64(b), Length: binary.LittleEndian.Uint64(b[8:])})
	}
	return newDRAM(out)
}
