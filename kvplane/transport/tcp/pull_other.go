//go:build !linux

package tcp

import "errors"

// iovecs is empty: there is no way through memory on this system.
type iovecs struct{}

func (*iovecs) read(int, [][]byte, []Range, []byte, uint64) error { return errors.ErrUnsupported }
