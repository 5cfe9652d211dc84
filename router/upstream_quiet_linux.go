package router

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// quiet looks at an idle connection without reading from it. The zero value finds every connection quiet, as does that of a TLS
// connection, whose peer may send records of its own at any time.
type quiet struct{ state *quietState }

type quietState struct {
	raw  syscall.RawConn
	look func(fd uintptr) bool
	ok   bool
	poll [1]unix.PollFd
}

func newQuiet(nc net.Conn) quiet {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return quiet{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return quiet{}
	}
	s := &quietState{raw: raw}
	s.look = func(fd uintptr) bool {
		s.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		n, err := unix.Poll(s.poll[:], 0) // does not allocate, as unix.Recvfrom does
		s.ok = n == 0 && err == nil
		return true
	}
	return quiet{s}
}

// check reports that the connection is open and that no byte waits to be read.
func (q quiet) check() bool {
	if q.state == nil {
		return true
	}
	q.state.ok = false
	return q.state.raw.Read(q.state.look) == nil && q.state.ok
}
