package cuda

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenAbsent(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), LibraryName)); err == nil || !strings.Contains(err.Error(), LibraryName) {
		t.Errorf("got %v; want an error that names the file", err)
	}
}

// TestOpenListsWhatIsMissing: a library that is not CUDA's gives one error with every function.
func TestOpenListsWhatIsMissing(t *testing.T) {
	_, err := Open("libc.so.6")
	if err == nil {
		t.Fatal("the C library was taken for CUDA's")
	}
	var c capi
	for _, f := range c.functions() {
		if !strings.Contains(err.Error(), f.name) {
			t.Errorf("%s is not named", f.name)
		}
	}
}

func TestOpenStartsTheDriver(t *testing.T) {
	f := openFake(t)
	f.failNext("cuInit", 3, 0)
	var problem *Error
	if _, err := Open(f.path); !errors.As(err, &problem) || problem.Op != "cuInit" || problem.Name != "CUDA_ERROR_NOT_INITIALIZED" {
		t.Errorf("got %v; want cuInit's error by name", err)
	}
	l, err := Open(f.path)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.Devices(); n != 2 || err != nil || l.Version() != "12.8" || l.Path() != f.path {
		t.Errorf("%d devices, %v, version %s of %s; want 2, 12.8 of %s", n, err, l.Version(), l.Path(), f.path)
	}
}

func TestErrorUnknownToTheDriver(t *testing.T) {
	f := openFake(t)
	l, err := Open(f.path)
	if err != nil {
		t.Fatal(err)
	}
	f.failNext("cuDeviceGetCount", 4711, 0)
	if _, err := l.Devices(); err == nil || err.Error() != "cuda: cuDeviceGetCount: result 4711" {
		t.Errorf("got %v", err)
	}
}

// TestLibraryWaitsForItsParts: memory, device and library close in this order only, each twice if need be.
func TestLibraryWaitsForItsParts(t *testing.T) {
	f := openFake(t)
	l, err := Open(f.path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Device(1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Alloc(10)
	if err != nil {
		t.Fatal(err)
	}
	if l.Close() == nil {
		t.Error("the library closed under an open device")
	}
	if d.Close() == nil {
		t.Error("the device closed under live memory")
	}
	if err := errors.Join(m.Close(), m.Close(), d.Close(), d.Close(), l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if n, c := f.allocations(), f.contexts(1); n != 0 || c != 0 {
		t.Errorf("%d allocations and %d contexts are left", n, c)
	}
	if m.Read(0, make([]byte, 1)) == nil || d.Sync() == nil {
		t.Error("what is closed was used")
	}
	if _, err := d.Alloc(1); err == nil {
		t.Error("a closed device allocated memory")
	}
	if _, err := l.Device(0); err == nil {
		t.Error("a closed library opened a device")
	}
}
