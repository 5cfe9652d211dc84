package memory

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mostIovecs is how many stretches one call takes (UIO_MAXIOV).
const mostIovecs = 1024

// CopyFromProcess copies len(to[i]) bytes at from[i] of another process's memory, which may be this process's own, into
// to[i], all of them. It is how the kernel copies between two processes, and so what transports between processes of one
// host are measured by.
func CopyFromProcess(pid int, to [][]byte, from []uint64) error {
	if len(to) != len(from) {
		return fmt.Errorf("kvplane: copy from process: %d stretches into %d", len(from), len(to))
	}
	var local []unix.Iovec
	var remote []unix.RemoteIovec
	for len(to) > 0 {
		n, total := min(len(to), mostIovecs), 0
		local, remote = local[:0], remote[:0]
		for i, b := range to[:n] {
			if len(b) == 0 {
				return fmt.Errorf("kvplane: copy from process: stretch at %#x is empty", from[i])
			}
			l := unix.Iovec{Base: &b[0]}
			l.SetLen(len(b))
			local = append(local, l)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(from[i]), Len: len(b)})
			total += len(b)
		}
		got, err := unix.ProcessVMReadv(pid, local, remote, 0)
		if err == nil && got != total {
			err = fmt.Errorf("%d of %d bytes", got, total)
		}
		if err != nil {
			return fmt.Errorf("kvplane: copy from process %d: %w", pid, err)
		}
		to, from = to[n:], from[n:]
	}
	return nil
}
