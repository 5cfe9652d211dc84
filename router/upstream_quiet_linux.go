package router

import (
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"pdrouter/internal/nonblock"
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

// patient reads from a connection into a page that is taken when there are bytes, so that who waits for them holds none. It writes,
// too. The zero value cannot, nor can that of anything but a TCP connection as it is. One goroutine may read while one writes.
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

	tryWrite func(fd uintptr) bool
	left     []byte // what is to be written
	why      error  // that not all of it was
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
	s.try, s.tryAsk, s.tryWrite = s.read, s.ask, s.write
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

// read is one try, which reports false if nothing is here yet.
func (s *patientState) read(fd uintptr) bool {
	to := newPage(s.pages)
	n, errno := nonblock.Read(fd, to[:])
	if n > 0 {
		s.page, s.n, s.err = to, n, nil
		return true
	}
	s.pages.Put(to)
	switch s.err = errno; errno {
	case syscall.EAGAIN:
		return false
	case 0:
		s.err = io.EOF
	}
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
	if _, errno := nonblock.Read(fd, s.look[:]); errno != syscall.EAGAIN {
		s.err = errNotQuiet
		return true
	}
	n, errno := nonblock.Write(fd, s.out)
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

// write writes all of b, as a write of the connection does, deadlines included.
func (p patient) write(b []byte) (int, error) {
	s := p.state
	s.left, s.why = b, nil
	err := s.raw.Write(s.tryWrite)
	n := len(b) - len(s.left)
	if s.left = nil; err == nil {
		err = s.why
	}
	return n, err
}

// write is one try, which reports false if there is no room for the rest.
func (s *patientState) write(fd uintptr) bool {
	for len(s.left) > 0 && s.why == nil {
		n, errno := nonblock.Write(fd, s.left)
		switch {
		case n > 0:
			s.left = s.left[n:]
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			s.why = errno
		default:
			s.why = io.ErrUnexpectedEOF
		}
	}
	return true
}
