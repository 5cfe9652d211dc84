//go:build !linux

package tcp

import (
	"errors"

	"pdrouter/kvplane/transfer"
)

// iovecs is empty: there is no way through memory on this system.
type iovecs struct{}

func (*iovecs) read(int, [][]byte, []transfer.Range, []byte, uint64) error {
	return errors.ErrUnsupported
}
