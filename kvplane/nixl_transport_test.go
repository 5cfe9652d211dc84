package kvplane

import (
	"sync"
	"testing"

	"pdrouter/kvplane/nixl"
)

var openNIXL = sync.OnceValues(func() (*nixl.Library, error) { return nixl.Open("") })

// newTransport returns a transport that is not open, or skips the test if this machine has none of that name.
func newTransport(t testing.TB, name string) Transport {
	t.Helper()
	if name == "tcp" {
		return NewTCP(TCPConfig{})
	}
	lib, err := openNIXL()
	if err != nil {
		t.Skip("SKIPPED, not run with real NIXL:", err)
	}
	return NewNIXL(lib, NIXLConfig{})
}
