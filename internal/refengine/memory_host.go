package refengine

import "pdrouter/kvplane/memory"

// blockMemory holds the bytes of one rank's blocks. One goroutine uses it at a time; the plane writes beside it, into blocks
// that nobody else uses.
type blockMemory interface {
	// view returns the block that lies at an offset. The bytes are valid until settle, and not to be changed.
	view(at int) []byte
	// change returns the block that lies at an offset, to be changed. What was changed is in memory after settle.
	change(at int) []byte
	// settle ends the use of what view and change have returned.
	settle()
	// sync waits until all that was settled is there for readers beside the engine, and makes view show what they have
	// written. It reports the first failure of the memory since it was made; after one it holds nothing of use.
	sync() error
	// where says what to register with a transport.
	where() memory.Region
	// close frees the memory. Safe to call twice.
	close() error
}

// hostMemory is the host's: blocks are used where they lie.
type hostMemory struct {
	bytes []byte
	block int // bytes of one
	free  func() error
}

func newHostMemory(n, block int) (*hostMemory, error) {
	b, free, err := memory.Allocate(n)
	if err != nil {
		return nil, err
	}
	return &hostMemory{bytes: b, block: block, free: free}, nil
}

func (m *hostMemory) view(at int) []byte   { return m.bytes[at : at+m.block] }
func (m *hostMemory) change(at int) []byte { return m.bytes[at : at+m.block] }
func (m *hostMemory) settle()              {}
func (m *hostMemory) sync() error          { return nil }
func (m *hostMemory) where() memory.Region { return memory.Of(m.bytes) }
func (m *hostMemory) close() error         { return m.free() }
