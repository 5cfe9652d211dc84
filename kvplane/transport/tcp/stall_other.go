//go:build !linux

package tcp

import "syscall"

// control does nothing where the kernel cannot bound how long sent bytes stay unacknowledged: there a stalled peer is
// noticed by the keep-alive alone.
func (t *Transport) control(_, _ string, _ syscall.RawConn) error { return nil }
