package tcp

import (
	"fmt"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane/transfer"
)

// iovecs are the arguments of a call to the kernel, kept to be used again.
type iovecs struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
}

// read copies the ranges of another process's memory into into, and then its bytes at wordAt into word, in one call.
func (v *iovecs) read(pid int, into [][]byte, from []transfer.Range, word []byte, wordAt uint64) error {
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
