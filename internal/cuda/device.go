package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Device is a GPU and its primary context, which this process's other users of the GPU share. It is safe for
// concurrent use.
type Device struct {
	l       *Library
	ordinal int
	device  uintptr // CUdevice
	context uintptr // CUcontext
	name    string
	live    atomic.Int64 // allocations
	closed  atomic.Bool
}

// Device opens the GPU of a number, counted from 0 as CUDA_VISIBLE_DEVICES leaves them. It makes the primary context,
// which takes up to a second where nobody has made it yet.
func (l *Library) Device(ordinal int) (*Device, error) {
	fail := func(err error) (*Device, error) { return nil, fmt.Errorf("cuda: device %d: %w", ordinal, err) }
	if l.closed.Load() {
		return fail(fmt.Errorf("%s is closed", l.path))
	}
	n, err := l.Devices()
	if err != nil {
		return fail(err)
	}
	if ordinal < 0 || ordinal >= n {
		return fail(fmt.Errorf("there are %d", n))
	}
	var device int32
	if err := l.call(l.c.deviceGet, uintptr(unsafe.Pointer(&device)), uintptr(ordinal)); err != nil {
		return fail(err)
	}
	d := &Device{l: l, ordinal: ordinal, device: uintptr(device)}
	name := make([]byte, 256)
	if err := l.call(l.c.deviceGetName, uintptr(unsafe.Pointer(unsafe.SliceData(name))), uintptr(len(name)), d.device); err != nil {
		return fail(err)
	}
	text, _, _ := bytes.Cut(name, []byte{0})
	d.name = string(text)
	if err := l.call(l.c.devicePrimaryCtxRetain, uintptr(unsafe.Pointer(&d.context)), d.device); err != nil {
		return fail(err)
	}
	l.devices.Add(1)
	return d, nil
}

// Ordinal returns the number that the device was opened by.
func (d *Device) Ordinal() int { return d.ordinal }

// Name returns what the driver calls it.
func (d *Device) Name() string { return d.name }

// Sync waits until everything that was given to the device through this context is finished: what was written before
// is then seen by every reader, other devices and network cards included.
func (d *Device) Sync() error {
	return d.here(func() error { return d.l.call(d.l.c.ctxSynchronize) })
}

// Close releases the context. It refuses while memory is allocated, and may be called twice.
func (d *Device) Close() error {
	if n := d.live.Load(); n > 0 {
		return fmt.Errorf("cuda: device %d: %d allocations are live", d.ordinal, n)
	}
	if d.closed.Swap(true) {
		return nil
	}
	d.l.devices.Add(-1)
	if err := d.l.call(d.l.c.devicePrimaryCtxRelease, d.device); err != nil {
		return fmt.Errorf("cuda: device %d: %w", d.ordinal, err)
	}
	return nil
}

// here calls f on a thread whose current context is the device's. A context is current for one thread, and goroutines
// move between threads, so each use pushes it and leaves the thread as it was: others that use the GPU do likewise.
func (d *Device) here(f func() error) (err error) {
	if d.closed.Load() {
		return fmt.Errorf("cuda: device %d is closed", d.ordinal)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.l.call(d.l.c.ctxPushCurrent, d.context); err != nil {
		return fmt.Errorf("cuda: device %d: %w", d.ordinal, err)
	}
	defer func() {
		popped := new(uintptr)
		err = errors.Join(err, d.l.call(d.l.c.ctxPopCurrent, uintptr(unsafe.Pointer(popped))))
	}()
	return f()
}
