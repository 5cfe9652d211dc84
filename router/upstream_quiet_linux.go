package router

import (
	"io"
	"net"
	"sync"
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

// patient reads from a connection into a page that is taken when there are bytes, so that who waits for them holds none. The zero
// value cannot, nor can that of anything but a TCP connection as it is.
type patient struct{ state *patientState }

type patientState struct {
	raw   syscall.RawConn
	pages *sync.Pool // of *page
	try   func(fd uintptr) bool
	page  *page
	n     int
	err   error

	tryAsk func(fd uintptr) bool
	out    []byte // a request that is to be written before an answer is read; nil if there is none, or it has left
	put    int    // bytes of it that have left
	look   [1]byte
}

func newPatient(nc net.Conn, pages *sync.Pool) patient {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return patient{}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return patient{}
	}
	s := &patientState{raw: raw, pages: pages}
	s.try, s.tryAsk = s.read, s.ask
	return patient{s}
}

// can reports whether there is such a connection.
func (p patient) can() bool { return p.state != nil }

// read waits for bytes and returns a page that begins with them. It does what a read of the connection does, deadlines included.
func (p patient) read() (*page, int, error) {
	s := p.state
	err := s.raw.Read(s.try)
	page, n := s.page, s.n
	if s.page, s.n = nil, 0; err == nil {
		err = s.err
	}
	return page, n, err
}

// read is one try, which reports false if nothing is here yet. It is syscall's, in which the race detector sees what a read orders.
func (s *patientState) read(fd uintptr) bool {
	to := newPage(s.pages)
	n, err := syscall.Read(int(fd), to[:])
	for err == syscall.EINTR {
		n, err = syscall.Read(int(fd), to[:])
	}
	if err == nil && n > 0 {
		s.page, s.n, s.err = to, n, nil
		return true
	}
	s.pages.Put(to)
	switch err {
	case syscall.EAGAIN:
		return false
	case nil:
		err = io.EOF
	}
	s.err = err
	return true
}

// ask writes out on a connection that lay idle, waits, and returns a page that begins with the answer and how many bytes were
// written. errNotQuiet says that none was: the connection is closed, or bytes came that nobody asked for. Without a page and an
// error no more could be written at once. The look whether the connection is quiet is also the read that has to fail before
// one can wait: with a look of its own a request takes four system calls on a connection, with this three.
func (p patient) ask(out []byte) (_ *page, n, put int, err error) {
	s := p.state
	s.out, s.put = out, 0
	err = s.raw.Read(s.tryAsk)
	s.out = nil
	page, n := s.page, s.n
	if s.page, s.n = nil, 0; err == nil {
		err = s.err
	}
	return page, n, s.put, err
}

// ask is one try. The runtime's poller is told to watch for bytes before it is called, so what comes behind the look wakes who waits.
func (s *patientState) ask(fd uintptr) bool {
	if s.out == nil {
		return s.read(fd)
	}
	if _, err := syscall.Read(int(fd), s.look[:]); err != syscall.EAGAIN {
		s.err = errNotQuiet
		return true
	}
	n, err := syscall.Write(int(fd), s.out)
	for err == syscall.EINTR {
		n, err = syscall.Write(int(fd), s.out)
	}
	s.put, s.err = max(n, 0), nil
	switch {
	case s.put == len(s.out):
		s.out = nil
		return false
	case err != nil && err != syscall.EAGAIN:
		s.err = err
	}
	return true
}
