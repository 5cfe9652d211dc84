package procid

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"pdrouter/metadata"
)

// errAnother is why a number is refused.
var errAnother = errors.New("the process has ended; its number may be another's")

// Held tells whether a process is still the one it was.
type Held struct {
	process metadata.Process
	fd      int // of the process, whatever gets its number; -1 where the kernel gives none
}

// Hold refuses a number that is another process's. The caller closes what it returns.
func Hold(p metadata.Process) (*Held, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		fd = -1
	}
	h := &Held{process: p, fd: fd}
	if err := h.same(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// same looks at when the process began.
func (h *Held) same() error {
	st, err := readStat(strconv.Itoa(h.process.PID))
	if err != nil {
		return err
	}
	if st.pid != h.process.PID || st.started != h.process.Started {
		return errAnother
	}
	return nil
}

// Alive is nil while the number is the process's own.
func (h *Held) Alive() error {
	if h.fd < 0 {
		return h.same()
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, 0)
	switch {
	case err != nil && !errors.Is(err, unix.EINTR):
		return err
	case err != nil:
		return h.same()
	case n > 0:
		return errAnother
	}
	return nil
}

// Close gives the kernel's handle back. It may be called twice.
func (h *Held) Close() {
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
		h.fd = -1
	}
}
