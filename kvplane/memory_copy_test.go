package kvplane

import (
	"bytes"
	"testing"
)

// TestCopyByKernel copies from one end of a mapping to the other, and nothing beside it.
func TestCopyByKernel(t *testing.T) {
	if err := memoryPermitted(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	b, free, err := AllocateMemory(5 << 12)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := free(); err != nil {
			t.Error(err)
		}
	}()
	for i := range b[:8192] {
		b[i] = byte(i%251 + 1)
	}
	if err := CopyByKernel(b[10000:18000], b[:8000]); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b[10000:18000], b[:8000]) || b[9999] != 0 || b[18000] != 0 {
		t.Error("other bytes were copied")
	}
	for _, n := range []int{0, 7} {
		if err := CopyByKernel(b[:n], b[:8]); err == nil {
			t.Errorf("8 bytes were copied to %d", n)
		}
	}
	if err := CopyByKernel(nil, nil); err == nil {
		t.Error("nothing was copied")
	}
}
