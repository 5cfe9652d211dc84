package tcp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// control bounds how long sent bytes may stay unacknowledged. TCP_NODELAY is Go's default.
func (t *Transport) control(_, _ string, c syscall.RawConn) error {
	var err error
	if ctlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(t.cfg.Stall.Milliseconds()))
	}); ctlErr != nil {
		return ctlErr
	}
	return err
}
