package nonblock

import (
	"syscall"
	"unsafe"
)

// Read reads into p: syscall.EAGAIN says that nothing is here yet, no bytes and no error (0) that the other side has ended.
func Read(fd uintptr, p []byte) (int, syscall.Errno) {
	if raced {
		return told(syscall.Read, fd, p)
	}
	return raw(syscall.SYS_READ, fd, p)
}

// Write writes what there is room for: syscall.EAGAIN says that there is none.
func Write(fd uintptr, p []byte) (int, syscall.Errno) {
	if raced {
		return told(syscall.Write, fd, p)
	}
	return raw(syscall.SYS_WRITE, fd, p)
}

// raw makes a call that moves bytes, again if a signal interrupts it.
func raw(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	if len(p) == 0 {
		return 0, 0
	}
	for {
		switch n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p))); errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// told makes it by a function of syscall's, in which the race detector sees what it orders.
func told(call func(int, []byte) (int, error), fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, err := call(int(fd), p)
		errno, _ := err.(syscall.Errno) //nolint:errorlint // these functions wrap nothing
		if errno != syscall.EINTR {
			return max(n, 0), errno
		}
	}
}
