package listener

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// RefuseNew has the kernel ignore further attempts to connect to a TCP listener, while connections that are being opened can
// still be accepted. It reports whether it could. Close ln after Settle: without it the kernel resets each connection that a client has
// opened and that was not accepted yet, with the request that the client has sent. A client whose attempt is ignored tries again after a
// second (Linux), and is refused then.
func RefuseNew(ln net.Listener) bool {
	sc, ok := ln.(syscall.Conn)
	if _, tcp := ln.Addr().(*net.TCPAddr); !ok || !tcp {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	// Of a TCP header, at which the filter begins, byte 13 has the flags. Only segments that open a connection have SYN here.
	dropSYN := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x02, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	prog := &unix.SockFprog{Len: uint16(len(dropSYN)), Filter: &dropSYN[0]}
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog)
	}); cerr != nil {
		return false
	}
	return err == nil
}
