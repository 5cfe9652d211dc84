package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
)

// LibraryName is what the driver's library is called.
const LibraryName = "libcuda.so.1"

// Library is an open libcuda. It is safe for concurrent use.
type Library struct {
	path    string
	c       capi
	version int
	devices atomic.Int64 // open ones
	closed  atomic.Bool
}

// Open loads the driver's library, resolves every function and starts the driver. What is missing is listed in one
// error. An empty path leaves it to the dynamic loader to find LibraryName.
func Open(path string) (*Library, error) {
	if path == "" {
		path = LibraryName
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("cuda: %s: %w", path, err)
	}
	l := &Library{path: path}
	var missing []string
	for _, f := range l.c.functions() {
		if f.at, err = purego.Dlsym(handle, f.name); err != nil {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		err := fmt.Errorf("cuda: %s: %d functions are missing: %s", path, len(missing), strings.Join(missing, ", "))
		return nil, errors.Join(err, purego.Dlclose(handle))
	}
	// From here the library stays mapped: a started driver has threads.
	if err := l.call(l.c.init, 0); err != nil {
		return nil, fmt.Errorf("%w (%s)", err, path)
	}
	var version int32
	if err := l.call(l.c.driverGetVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, err
	}
	l.version = int(version)
	return l, nil
}

// Path returns the file that was opened, as it was named.
func (l *Library) Path() string { return l.path }

// Version returns the newest CUDA that the driver serves, "13.0".
func (l *Library) Version() string { return fmt.Sprintf("%d.%d", l.version/1000, l.version%1000/10) }

// Devices returns how many GPUs there are.
func (l *Library) Devices() (int, error) {
	var n int32
	err := l.call(l.c.deviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// Close ends the use of the library; it refuses while devices are open and may be called twice. The code stays mapped.
func (l *Library) Close() error {
	if n := l.devices.Load(); n > 0 {
		return fmt.Errorf("cuda: %s: %d devices are open", l.path, n)
	}
	l.closed.Store(true)
	return nil
}

// call calls a function that returns a CUresult. Pointers given as uintptr(unsafe.Pointer(p)) in its argument list stay
// valid during the call.
//
//go:uintptrescapes
func (l *Library) call(f function, args ...uintptr) error {
	r, _, _ := purego.SyscallN(f.at, args...)
	if int32(r) == success {
		return nil
	}
	return &Error{Op: f.name, Result: int(int32(r)), Name: l.describe(l.c.getErrorName, r), Text: l.describe(l.c.getErrorString, r)}
}

// describe asks the driver for a string about a result; it returns "" if the driver has none.
func (l *Library) describe(f function, result uintptr) string {
	at := new(uintptr)
	if r, _, _ := purego.SyscallN(f.at, result, uintptr(unsafe.Pointer(at))); int32(r) != success {
		return ""
	}
	return gostring(*at)
}

// gostring copies a NUL-terminated string of C's.
func gostring(address uintptr) string {
	if address == 0 {
		return ""
	}
	var out []byte
	for ; ; address++ {
		// Through a pointer to the number: the memory is not Go's, so the collector never moves it.
		b := **(**byte)(unsafe.Pointer(&address))
		if b == 0 {
			return string(out)
		}
		out = append(out, b)
	}
}
