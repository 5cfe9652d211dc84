package main

import (
	"io"
	"strings"
	"testing"

	"pdrouter/internal/cuda"
)

// TestEngineOnGPU: an engine whose KV lies on a GPU answers as one whose KV does not; without a GPU it says what is
// missing.
func TestEngineOnGPU(t *testing.T) {
	lib, err := cuda.Open("")
	if err == nil {
		n, derr := lib.Devices()
		if derr == nil && n == 0 {
			t.Skip("SKIPPED, not run with a real GPU: the driver has none")
		}
	}
	if err != nil {
		const want = "engine: --kv-memory vram: cuda: libcuda.so.1: "
		if err := run(t.Context(), []string{"mock-engine", "--kv-memory", "vram"}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v; want %q", err, want)
		}
		t.Skip("SKIPPED, not run with a real GPU:", err)
	}
	const ask = `{"prompt":"The sea, the sea","max_tokens":12,"ignore_eos":true}`
	host, device := startEngine(t, "--tp", "2"), startEngine(t, "--tp", "2", "--kv-memory", "vram")
	if !strings.Contains(device.line, " GPUs") {
		t.Errorf("its line is %q; want it to name the GPUs", device.line)
	}
	_, want, err := complete(host.url, ask)
	if err != nil {
		t.Fatal(err)
	}
	if status, got, err := complete(device.url, ask); got != want || want == "" || err != nil {
		t.Errorf("status %d, %v: %q; the host's memory gives %q", status, err, got, want)
	}
}
