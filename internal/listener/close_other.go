//go:build !linux

package listener

import "net"

// closeListener closes ln.
func closeListener(ln net.Listener) ([]net.Conn, error) {
	_ = ln.Close()
	return nil, nil
}

// tooMany reports whether a connection could not be accepted for want of descriptors.
func tooMany(error) bool { return false }
