//go:build !linux

package listener

import "net"

// RefuseNew can do nothing on this system.
func RefuseNew(net.Listener) bool { return false }
