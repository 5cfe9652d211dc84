package cuda

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
)

// realDevice opens the first GPU or skips the test.
func realDevice(t *testing.T) *Device {
	t.Helper()
	l, err := Open("")
	if err != nil {
		t.Skip("SKIPPED, not run with a real GPU:", err)
	}
	n, err := l.Devices()
	if err == nil && n == 0 {
		t.Skip("SKIPPED, not run with a real GPU: the driver has none")
	}
	t.Logf("%s, CUDA %s, %d devices, %v", l.Path(), l.Version(), n, err)
	return device(t, l)
}

func device(t *testing.T, l *Library) *Device {
	t.Helper()
	d, err := l.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("device %d is a %s", d.Ordinal(), d.Name())
	return d
}

func fakeDevice(t *testing.T) (*fake, *Device) {
	t.Helper()
	f := openFake(t)
	l, err := Open(f.path)
	if err != nil {
		t.Fatal(err)
	}
	return f, device(t, l)
}

// TestFakeDevice runs the whole interface against the fake driver.
func TestFakeDevice(t *testing.T) {
	f, d := fakeDevice(t)
	exercise(t, d)
	if n := f.allocations(); n != 0 {
		t.Errorf("%d allocations are left", n)
	}
}

// TestRealDevice runs the same on a GPU.
func TestRealDevice(t *testing.T) { exercise(t, realDevice(t)) }

func exercise(t *testing.T, d *Device) {
	const n = 3<<20 + 17
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	if m.Len() != n || m.Address() == 0 || m.Device() != d {
		t.Errorf("%d bytes at %#x", m.Len(), m.Address())
	}
	got := bytes.Repeat([]byte{1}, n)
	want := make([]byte, n)
	check := func(what string) {
		t.Helper()
		if err := m.Read(0, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%s: the bytes differ", what)
		}
	}
	check("new memory is zeroed")
	c := rand.NewChaCha8([32]byte{7})
	for _, r := range [][2]int{{0, n}, {0, 1}, {n - 1, 1}, {4097, 65537}, {n, 0}, {0, 0}} {
		_, _ = c.Read(want[r[0] : r[0]+r[1]]) // never fails
		if err := m.Write(r[0], want[r[0]:r[0]+r[1]]); err != nil {
			t.Fatal(err)
		}
		check("written")
		part := make([]byte, r[1])
		if err := m.Read(r[0], part); err != nil || !bytes.Equal(part, want[r[0]:r[0]+r[1]]) {
			t.Fatalf("%d bytes at %d differ: %v", r[1], r[0], err)
		}
	}
	copy(want[1<<20:], want[5:5+(1<<20)-5])
	if err := errors.Join(m.Copy(1<<20, 5, 1<<20-5), d.Sync()); err != nil {
		t.Fatal(err)
	}
	check("copied")
	for what, err := range map[string]error{
		"read past the end":   m.Read(n-1, got[:2]),
		"read far away":       m.Read(n+1, nil),
		"read before":         m.Read(-1, got[:1]),
		"write past the end":  m.Write(1, got),
		"copy past the end":   m.Copy(0, n-1, 2),
		"copy to past end":    m.Copy(n-1, 0, 2),
		"copy onto itself":    m.Copy(1, 0, 2),
		"copy of less than 0": m.Copy(0, 10, -1),
	} {
		if err == nil {
			t.Errorf("%s: done", what)
		}
	}
	check("after what was refused")
	for _, n := range []int{0, -1} {
		if _, err := d.Alloc(n); err == nil {
			t.Errorf("memory of %d bytes was allocated", n)
		}
	}
	if _, err := d.Alloc(1 << 60); err == nil {
		t.Error("an exbibyte was allocated")
	}

	// Goroutines move between threads, and each thread has its own current context.
	const each = 64 << 10
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			mine, theirs := bytes.Repeat([]byte{byte(g)}, each), make([]byte, each)
			for range 20 {
				err := errors.Join(m.Write(g*each, mine), d.Sync(), m.Read(g*each, theirs))
				if err != nil || !bytes.Equal(mine, theirs) {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	other, err := d.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Close(), m.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	if m.Read(0, got[:1]) == nil || m.Write(0, got[:1]) == nil || m.Copy(0, 1, 1) == nil {
		t.Error("freed memory was used")
	}
}

// TestCopyIsFinished: what Copy has copied and what Alloc has zeroed is there for readers that do not ask the driver.
func TestCopyIsFinished(t *testing.T) {
	_, d := fakeDevice(t)
	m, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if !bytes.Equal(raw(m), make([]byte, 100)) {
		t.Error("Alloc returned before the memory was zeroed")
	}
	if err := errors.Join(m.Write(0, []byte("block")), m.Copy(50, 0, 5)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw(m)[50:55], []byte("block")) {
		t.Error("Copy returned before the end")
	}
}

// TestFailuresLeaveNothing lets each function fail in turn: the error names it, nothing stays allocated, and the
// thread's stack of contexts is as it was.
func TestFailuresLeaveNothing(t *testing.T) {
	f, d := fakeDevice(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m, err := d.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	allocate := func() error {
		m, err := d.Alloc(4096)
		if err == nil {
			t.Error("memory was allocated")
			err = m.Close()
		}
		return err
	}
	const result = 2
	for _, c := range []struct {
		function string
		after    int
		do       func() error
	}{
		{"cuCtxPushCurrent_v2", 0, allocate},
		{"cuMemAlloc_v2", 0, allocate},
		{"cuPointerSetAttribute", 0, allocate},
		{"cuMemsetD8_v2", 0, allocate},
		{"cuCtxSynchronize", 0, allocate},
		{"cuMemcpyHtoD_v2", 0, func() error { return m.Write(0, []byte{1}) }},
		{"cuMemcpyDtoH_v2", 0, func() error { return m.Read(0, []byte{1}) }},
		{"cuMemcpyDtoD_v2", 0, func() error { return m.Copy(0, 1, 1) }},
		{"cuCtxSynchronize", 0, func() error { return m.Copy(0, 1, 1) }},
		{"cuCtxSynchronize", 0, d.Sync},
		{"cuDevicePrimaryCtxRetain", 0, func() error { _, err := d.l.Device(0); return err }},
		{"cuDeviceGet", 0, func() error { _, err := d.l.Device(0); return err }},
		{"cuDeviceGetName", 0, func() error { _, err := d.l.Device(0); return err }},
	} {
		f.failNext(c.function, result, c.after)
		var problem *Error
		if err := c.do(); !errors.As(err, &problem) || problem.Op != c.function || problem.Result != result {
			t.Errorf("%s: got %v", c.function, err)
		}
		if n, c := f.allocations(), f.contexts(0); n != 1 || c != 1 {
			t.Errorf("%d allocations and %d contexts; want 1 and 1", n, c)
		}
		if n := f.pushed(); n != 0 {
			t.Errorf("%s: %d contexts are left on the thread", c.function, n)
		}
	}
	for _, ordinal := range []int{-1, 2} {
		if _, err := d.l.Device(ordinal); err == nil {
			t.Errorf("device %d was opened", ordinal)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
