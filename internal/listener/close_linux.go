package listener

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// handshake is how long a connection that a client had begun to make when its listener is to close may take to be there.
const handshake = 50 * time.Millisecond

// closeListener closes ln and returns the connections that clients had already made and nobody had accepted, which closing
// alone would reset. From then on connections are refused. Whoever begins to connect meanwhile hears nothing, asks again
// after a second as TCP does, and is refused. The error says why new attempts could not be ignored; the listener is closed all the same.
// docs/decisions/listener-filter.md has what happens without the filter.
func closeListener(ln net.Listener) ([]net.Conn, error) {
	defer ln.Close()
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return nil, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	var unfiltered error
	_ = raw.Control(func(fd uintptr) { // an error is that of a listener that was closed before
		unfiltered = os.NewSyscallError("setsockopt", syscall.AttachLsf(int(fd), noSYN())) //nolint:staticcheck // x/net/bpf would be a dependency for four instructions
	})
	time.Sleep(handshake)
	var conns []net.Conn
	_ = raw.Control(func(fd uintptr) {
		for {
			n, _, err := syscall.Accept4(int(fd), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			if errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.ECONNABORTED) {
				continue
			}
			if err != nil {
				break
			}
			f := os.NewFile(uintptr(n), "")
			if conn, err := net.FileConn(f); err == nil {
				conns = append(conns, conn)
			}
			_ = f.Close() // conn has a copy
		}
		_ = syscall.Shutdown(int(fd), syscall.SHUT_RD) // at once: closing waits for others that use it
	})
	return conns, unfiltered
}

// noSYN is a socket filter that lets everything in but what begins a connection.
func noSYN() []syscall.SockFilter {
	const flags, syn = 13, 0x02 // of a TCP header
	return []syscall.SockFilter{
		{Code: syscall.BPF_LD | syscall.BPF_B | syscall.BPF_ABS, K: flags},
		{Code: syscall.BPF_JMP | syscall.BPF_JSET | syscall.BPF_K, Jf: 1, K: syn},
		{Code: syscall.BPF_RET | syscall.BPF_K},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: 1<<32 - 1},
	}
}

// tooMany reports whether a connection could not be accepted for want of descriptors.
func tooMany(err error) bool { return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) }
