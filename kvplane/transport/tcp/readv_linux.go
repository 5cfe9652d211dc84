package tcp

import "golang.org/x/sys/unix"

// readVector reads from a socket into several buffers.
func readVector(fd int, into [][]byte) (int, error) { return unix.Readv(fd, into) }
