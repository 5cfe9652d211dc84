package refengine

import (
	"fmt"

	"pdrouter/kvplane/memory"
)

// Device makes a rank's KV memory on a GPU: n bytes, and what a transport registers for them.
type Device func(rank, n int) (DeviceMemory, memory.Region, error)

// DeviceMemory is memory that the processor reaches by copies only. Read and Write return when the copy is finished.
type DeviceMemory interface {
	Read(off int, p []byte) error
	Write(off int, p []byte) error
	Sync() error // waits for the device
	Close() error
}

// deviceMemory is a GPU's: blocks are used in copies on the host, whole ones, which settle brings back.
type deviceMemory struct {
	device DeviceMemory
	at     memory.Region
	block  int             // bytes of one
	staged map[int]*staged // by offset
	spare  []*staged
	err    error // the first failure
}

// staged is a block's copy.
type staged struct {
	bytes   []byte
	changed bool
}

func newDeviceMemory(make Device, rank, n, block int) (*deviceMemory, error) {
	d, at, err := make(rank, n)
	if err != nil {
		return nil, err
	}
	return &deviceMemory{device: d, at: at, block: block, staged: map[int]*staged{}}, nil
}

func (m *deviceMemory) view(at int) []byte { return m.stage(at).bytes }

func (m *deviceMemory) change(at int) []byte {
	s := m.stage(at)
	s.changed = true
	return s.bytes
}

// stage copies a block to the host, unless it is there since the last settle.
func (m *deviceMemory) stage(at int) *staged {
	if s := m.staged[at]; s != nil {
		return s
	}
	var s *staged
	if last := len(m.spare) - 1; last >= 0 {
		s, m.spare = m.spare[last], m.spare[:last]
	} else {
		s = &staged{bytes: make([]byte, m.block)}
	}
	m.staged[at] = s
	if m.err == nil {
		m.failed("read", at, m.device.Read(at, s.bytes))
	}
	return s
}

func (m *deviceMemory) settle() {
	for at, s := range m.staged {
		if s.changed && m.err == nil {
			m.failed("write", at, m.device.Write(at, s.bytes))
		}
		s.changed = false
		m.spare = append(m.spare, s)
	}
	clear(m.staged)
}

func (m *deviceMemory) failed(what string, at int, err error) {
	if err != nil {
		m.err = fmt.Errorf("%s of a block at %d: %w", what, at, err)
	}
}

func (m *deviceMemory) sync() error {
	if m.err == nil {
		m.err = m.device.Sync()
	}
	return m.err
}

func (m *deviceMemory) where() memory.Region { return m.at }

func (m *deviceMemory) close() error { return m.device.Close() }
