// Package memory describes memory that a transport may touch: regions, on the host or on a GPU, and sets of them. It allocates such memory on the
// host, and copies out of another process's. It knows no transport.
package memory

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"pdrouter/internal/cuda"
	"pdrouter/kvplane/memory/view"
)

// Region is a stretch of this process's memory that peers may write into or that is written from. It lies outside
// Go's heap (see Allocate) and stays valid until the transport is closed.
type Region struct {
	Base   uint64 // address
	Length uint64 // bytes
	Type   string `msgpack:",omitempty"` // "" or "dram", or "vram": the memory of the GPU numbered Device
	Device int    `msgpack:",omitempty"`
}

// Allocate maps n zeroed bytes outside Go's heap, page-aligned, where peers may write. The function it returns
// unmaps them and may be called twice; nothing may touch the bytes afterwards, so close the transport first.
func Allocate(n int) ([]byte, func() error, error) {
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

// Of describes bytes that Allocate made.
func Of(b []byte) Region {
	return Region{Base: view.Address(b), Length: uint64(len(b))}
}

// On describes memory that was allocated on a GPU. Only transports that say so can reach it.
func On(m *cuda.Memory) Region {
	return Region{Base: m.Address(), Length: uint64(m.Len()), Type: "vram", Device: m.Device().Ordinal()}
}
