package kvplane

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"pdrouter/internal/cuda"
	"pdrouter/kvplane/nixl"
)

// AllocateMemory maps n zeroed bytes outside Go's heap, page-aligned, where peers may write. The function it returns
// unmaps them and may be called twice; nothing may touch the bytes afterwards, so close the transport first.
func AllocateMemory(n int) ([]byte, func() error, error) {
	if n <= 0 {
		return nil, nil, fmt.Errorf("kvplane: memory of %d bytes; want more than 0", n)
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("kvplane: memory of %d bytes: %w", n, err)
	}
	hugePages(b)
	return b, sync.OnceValue(func() error { return unix.Munmap(b) }), nil
}

// MemoryOf describes bytes that AllocateMemory made.
func MemoryOf(b []byte) Memory {
	return Memory{Base: nixl.Address(b), Length: uint64(len(b))}
}

// MemoryOn describes memory that was allocated on a GPU. Only transports that say so can reach it.
func MemoryOn(m *cuda.Memory) Memory {
	return Memory{Base: m.Address(), Length: uint64(m.Len()), Type: "vram", Device: m.Device().Ordinal()}
}
