package nonblock

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// IdleCheck looks at an idle connection, and takes no byte from one that is. The zero value finds every connection idle. That of a TLS
// connection finds it idle as long as no byte of its peer is here, a record of TLS's own included.
type IdleCheck struct {
	state *idleState
	tls   *tls.Conn // nil of others
}

type idleState struct {
	raw  syscall.RawConn
	look func(fd uintptr) bool
	ok   bool
	poll [1]unix.PollFd
	one  [1]byte
}

// NewIdleCheck returns the IdleCheck of a connection.
func NewIdleCheck(nc net.Conn) IdleCheck {
	secure, _ := nc.(*tls.Conn)
	if secure != nil {
		nc = secure.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return IdleCheck{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return IdleCheck{}
	}
	s := &idleState{raw: raw}
	s.look = func(fd uintptr) bool {
		s.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		n, err := unix.Poll(s.poll[:], 0) // does not allocate, as unix.Recvfrom does
		s.ok = n == 0 && err == nil
		return true
	}
	return IdleCheck{s, secure}
}

// Idle reports whether the connection is open and has no byte to read.
func (c IdleCheck) Idle() bool {
	if c.state == nil {
		return true
	}
	c.state.ok = false
	return c.state.raw.Read(c.state.look) == nil && c.state.ok && (c.tls == nil || c.nothingDecrypted())
}

// nothingDecrypted reports whether TLS has read no byte that nobody asked for: it reads more of the socket than one record.
func (c IdleCheck) nothingDecrypted() bool {
	if c.tls.SetReadDeadline(time.Unix(1, 0)) != nil { // what is not here yet is not waited for
		return false
	}
	n, err := c.tls.Read(c.state.one[:])
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.tls.SetReadDeadline(time.Time{}) == nil
}

// Conn reads from a TCP connection into a Buf that is taken when bytes have arrived, so that a waiting reader holds no memory. It
// writes, too. The zero value is not available, nor is that of any other connection. One goroutine may read while another writes.
type Conn struct{ state *connState }

type connState struct {
	raw  syscall.RawConn
	bufs *sync.Pool // of *Buf
	try  func(fd uintptr) bool
	buf  *Buf
	n    int
	err  error

	tryWriteRead func(fd uintptr) bool
	out          []byte // what must be written before the read; nil if there is nothing, or it is written
	put          int    // bytes of it that are written
	look         [1]byte

	tryWrite func(fd uintptr) bool
	left     []byte // what is still to be written
	writeErr error
}

// NewConn returns the Conn of a connection. Its Bufs come from a pool of *Buf, and the reader gives them back.
func NewConn(nc net.Conn, bufs *sync.Pool) Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return Conn{}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return Conn{}
	}
	s := &connState{raw: raw, bufs: bufs}
	s.try, s.tryWriteRead, s.tryWrite = s.read, s.writeRead, s.write
	return Conn{s}
}

// Available reports whether the other methods can be used.
func (c Conn) Available() bool { return c.state != nil }

// Read waits for bytes and returns a Buf that begins with them. Otherwise it behaves like a read of the connection, deadlines
// included.
func (c Conn) Read() (*Buf, int, error) {
	s := c.state
	err := s.raw.Read(s.try)
	return s.result(err)
}

// result returns what a read has found, and forgets it.
func (s *connState) result(err error) (*Buf, int, error) {
	buf, n := s.buf, s.n
	if s.buf, s.n = nil, 0; err == nil {
		err = s.err
	}
	return buf, n, err
}

// read is one attempt. It reports false if no byte has arrived yet.
func (s *connState) read(fd uintptr) bool {
	to := GetBuf(s.bufs)
	n, errno := Read(fd, to[:])
	if n > 0 {
		s.buf, s.n, s.err = to, n, nil
		return true
	}
	s.bufs.Put(to)
	switch s.err = errno; errno {
	case syscall.EAGAIN:
		return false
	case 0:
		s.err = io.EOF
	}
	return true
}

// WriteRead writes out to an idle connection, waits, and returns a Buf that begins with the answer, and how many bytes were written.
// With ErrNotIdle nothing was written. If not all of out could be written at once it returns no Buf and no error.
//
// The check that the connection is idle is also the read that has to fail before the wait: together they take three system calls,
// and with a separate check four.
func (c Conn) WriteRead(out []byte) (_ *Buf, n, put int, err error) {
	s := c.state
	s.out, s.put = out, 0
	err = s.raw.Read(s.tryWriteRead)
	s.out = nil
	buf, n, err := s.result(err)
	return buf, n, s.put, err
}

// writeRead is one attempt. The runtime's poller watches the connection before the attempt, so bytes that arrive after it wake the
// reader.
func (s *connState) writeRead(fd uintptr) bool {
	if s.out == nil {
		return s.read(fd)
	}
	if _, errno := Read(fd, s.look[:]); errno != syscall.EAGAIN {
		s.err = ErrNotIdle
		return true
	}
	n, errno := Write(fd, s.out)
	s.put, s.err = n, nil
	switch {
	case s.put == len(s.out):
		s.out = nil
		return false
	case errno != 0 && errno != syscall.EAGAIN:
		s.err = errno
	}
	return true
}

// Write writes all of b, as a write of the connection does, deadlines included.
func (c Conn) Write(b []byte) (int, error) {
	s := c.state
	s.left, s.writeErr = b, nil
	err := s.raw.Write(s.tryWrite)
	n := len(b) - len(s.left)
	if s.left = nil; err == nil {
		err = s.writeErr
	}
	return n, err
}

// write is one attempt. It reports false if there is no room for the rest.
func (s *connState) write(fd uintptr) bool {
	for len(s.left) > 0 && s.writeErr == nil {
		n, errno := Write(fd, s.left)
		switch {
		case n > 0:
			s.left = s.left[n:]
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			s.writeErr = errno
		default:
			s.writeErr = io.ErrUnexpectedEOF
		}
	}
	return true
}
