package kvplane

import "testing"

// newTransport returns a transport that is not open, or skips the test if this machine has none of that name.
func newTransport(t testing.TB, name string) Transport {
	t.Helper()
	if name == "tcp" {
		return NewTCP(TCPConfig{})
	}
	t.Skip("no NIXL yet")
	return nil
}
