package transport_test

import (
	"testing"

	"pdrouter/kvplane/transport/transporttest"
)

// TestMemoryOnGPU: what describes memory on a GPU names the device, and its bytes are as they were stored.
func TestMemoryOnGPU(t *testing.T) {
	r := transporttest.NewRoom(t, "vram", 8192)
	n := &transporttest.Node{T: t, Room: r, Mem: r.Bytes}
	if r.Memory.Base == 0 || r.Memory.Length != 8192 || r.Memory.Type != "vram" || r.Memory.Device != 0 {
		t.Errorf("described as %+v", r.Memory)
	}
	transporttest.Scribble(n.Mem, 1)
	want := transporttest.Digest(n.Mem)
	n.Store()
	clear(n.Mem)
	n.Load()
	if transporttest.Digest(n.Mem) != want {
		t.Error("the bytes differ")
	}
}
