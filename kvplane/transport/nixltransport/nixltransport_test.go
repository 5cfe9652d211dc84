package nixltransport

import (
	"testing"

	"pdrouter/kvplane/transport/transporttest"
)

// newNIXL returns a transport that is not open, or skips the test on a machine without NIXL.
func newNIXL(t testing.TB) *Transport {
	t.Helper()
	return New(transporttest.OpenNIXL(t), Config{})
}
