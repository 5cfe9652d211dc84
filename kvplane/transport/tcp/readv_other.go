//go:build !linux

package tcp

import "golang.org/x/sys/unix"

// readVector reads from a socket into the first buffer.
func readVector(fd int, into [][]byte) (int, error) { return unix.Read(fd, into[0]) }
