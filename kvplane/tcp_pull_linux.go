package kvplane

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"pdrouter/metadata"
)

// iovecs are the arguments of a call to the kernel, kept to be used again.
type iovecs struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
}

// read copies the ranges of another process's memory into into, and then its bytes at wordAt into word, in one call.
func (v *iovecs) read(pid int, into [][]byte, from []Range, word []byte, wordAt uint64) error {
	v.local, v.remote = v.local[:0], v.remote[:0]
	total := 0
	add := func(to []byte, at uint64) {
		l := unix.Iovec{Base: &to[0]}
		l.SetLen(len(to))
		v.local = append(v.local, l)
		v.remote = append(v.remote, unix.RemoteIovec{Base: uintptr(at), Len: len(to)})
		total += len(to)
	}
	for i, to := range into {
		add(to, from[i].Local)
	}
	add(word, wordAt)
	n, err := unix.ProcessVMReadv(pid, v.local, v.remote, 0)
	if err == nil && n != total {
		err = fmt.Errorf("%d of %d bytes", n, total)
	}
	return err
}

// errAnotherProcess is why nothing is copied from a number that was another process's.
var errAnotherProcess = errors.New("the process has ended; its number may be another's")

// heldProcess tells whether a process is still the one it was.
type heldProcess struct {
	process metadata.Process
	fd      int // of the process, whatever gets its number; -1 where the kernel gives none
}

// holdProcess refuses a number that is another process's.
func holdProcess(p metadata.Process) (*heldProcess, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		fd = -1
	}
	h := &heldProcess{process: p, fd: fd}
	if err := h.same(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// same looks at when the process began.
func (h *heldProcess) same() error {
	st, err := readStat(strconv.Itoa(h.process.PID))
	if err != nil {
		return err
	}
	if st.pid != h.process.PID || st.started != h.process.Started {
		return errAnotherProcess
	}
	return nil
}

// alive is nil while the number is the process's own.
func (h *heldProcess) alive() error {
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
		return errAnotherProcess
	}
	return nil
}

func (h *heldProcess) close() {
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
		h.fd = -1
	}
}
