package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Memory is an allocation on a GPU. Its methods return when the copy is finished, are safe for concurrent use, and
// leave it to the caller that nobody touches the same bytes at the same time.
type Memory struct {
	d       *Device
	address uint64 // CUdeviceptr
	length  int
	closed  atomic.Bool
}

// Alloc allocates n zeroed bytes on the device.
func (d *Device) Alloc(n int) (*Memory, error) {
	fail := func(err error) (*Memory, error) {
		return nil, fmt.Errorf("cuda: device %d: memory of %d bytes: %w", d.ordinal, n, err)
	}
	if n <= 0 {
		return fail(errors.New("want more than 0"))
	}
	m := &Memory{d: d, length: n}
	c := &d.l.c
	err := d.here(func() error {
		if err := d.l.call(c.memAlloc, uintptr(unsafe.Pointer(&m.address)), uintptr(n)); err != nil {
			return err
		}
		yes := uint32(1) // synchronous calls on this memory shall be so, whatever else writes it
		err := d.l.call(c.pointerSetAttribute, uintptr(unsafe.Pointer(&yes)), syncMemops, uintptr(m.address))
		if err == nil {
			err = d.l.call(c.memsetD8, uintptr(m.address), 0, uintptr(n))
		}
		if err == nil {
			err = d.l.call(c.ctxSynchronize)
		}
		if err != nil {
			err = errors.Join(err, d.l.call(c.memFree, uintptr(m.address)))
		}
		return err
	})
	if err != nil {
		return fail(err)
	}
	d.live.Add(1)
	return m, nil
}

// Address returns where the memory lies in the address space that the host and its GPUs share.
func (m *Memory) Address() uint64 { return m.address }

// Len returns its length in bytes.
func (m *Memory) Len() int { return m.length }

// Device returns the device it lies on.
func (m *Memory) Device() *Device { return m.d }

// Read copies len(p) bytes from offset off into p.
func (m *Memory) Read(off int, p []byte) error {
	return m.with("read", off, len(p), func() error {
		return m.d.l.call(m.d.l.c.memcpyDtoH, uintptr(unsafe.Pointer(unsafe.SliceData(p))), m.at(off), uintptr(len(p)))
	})
}

// Write copies p to offset off.
func (m *Memory) Write(off int, p []byte) error {
	return m.with("write", off, len(p), func() error {
		return m.d.l.call(m.d.l.c.memcpyHtoD, m.at(off), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	})
}

// Copy copies n bytes from offset from to offset to; the two must not overlap.
func (m *Memory) Copy(to, from, n int) error {
	if to < from+n && from < to+n && n > 0 {
		return fmt.Errorf("cuda: copy of %d bytes from %d to %d overlaps itself", n, from, to)
	}
	if err := m.with("copy", from, n, func() error { return nil }); err != nil {
		return err
	}
	return m.with("copy", to, n, func() error {
		if err := m.d.l.call(m.d.l.c.memcpyDtoD, m.at(to), m.at(from), uintptr(n)); err != nil {
			return err
		}
		return m.d.l.call(m.d.l.c.ctxSynchronize) // within a device the driver may return before the end
	})
}

// Sync waits as Device.Sync does.
func (m *Memory) Sync() error { return m.d.Sync() }

// Close frees the memory. Safe to call twice; nothing may touch the bytes afterwards.
func (m *Memory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	defer m.d.live.Add(-1)
	return m.d.here(func() error { return m.d.l.call(m.d.l.c.memFree, uintptr(m.address)) })
}

func (m *Memory) at(off int) uintptr { return uintptr(m.address) + uintptr(off) }

// with calls f, in which the device's context is current, for n bytes at off, unless there are none.
func (m *Memory) with(what string, off, n int, f func() error) error {
	switch {
	case m.closed.Load():
		return fmt.Errorf("cuda: %s of memory that was freed", what)
	case off < 0 || n < 0 || off > m.length || n > m.length-off:
		return fmt.Errorf("cuda: %s of %d bytes at %d of %d", what, n, off, m.length)
	case n == 0:
		return nil
	}
	return m.d.here(f)
}
