package cuda

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// fake is testdata/fakecuda.c, compiled and opened: the driver's functions over host memory.
type fake struct {
	path                        string
	fail, live, retained, depth uintptr
}

// openFake compiles the fake driver, or skips the test on a machine without a C compiler.
func openFake(t testing.TB) *fake {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		if cc, err = exec.LookPath("gcc"); err != nil {
			t.Skip("SKIPPED, not run against the fake driver: there is no C compiler:", err)
		}
	}
	f := &fake{path: filepath.Join(t.TempDir(), "libfakecuda.so")}
	out, err := exec.Command(cc, "-std=gnu11", "-Wall", "-Werror", "-O1", "-fPIC", "-shared", "-pthread", "-o", f.path, "testdata/fakecuda.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	handle, err := purego.Dlopen(f.path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]*uintptr{"fake_fail": &f.fail, "fake_live": &f.live, "fake_retained": &f.retained, "fake_depth": &f.depth} {
		if *at, err = purego.Dlsym(handle, name); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// failNext lets a function fail once with a result, after it was called so many times.
func (f *fake) failNext(name string, result, after int) {
	cname := append([]byte(name), 0)
	purego.SyscallN(f.fail, uintptr(unsafe.Pointer(unsafe.SliceData(cname))), uintptr(result), uintptr(after))
	runtime.KeepAlive(cname)
}

func (f *fake) allocations() int { return counted(f.live) }

func (f *fake) contexts(device int) int { return counted(f.retained, uintptr(device)) }

// pushed counts the contexts on the calling thread's stack.
func (f *fake) pushed() int { return counted(f.depth) }

func counted(function uintptr, args ...uintptr) int {
	r, _, _ := purego.SyscallN(function, args...)
	return int(int32(r))
}

// raw is the device memory as a network card sees it: past the driver. Only the fake's memory can be seen so.
func raw(m *Memory) []byte {
	at := uintptr(m.Address())
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), m.Len())
}
