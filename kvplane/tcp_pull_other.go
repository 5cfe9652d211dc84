//go:build !linux

package kvplane

import (
	"errors"

	"pdrouter/metadata"
)

// iovecs is empty: there is no way through memory on this system.
type iovecs struct{}

func (*iovecs) read(int, [][]byte, []Range, []byte, uint64) error { return errors.ErrUnsupported }

// heldProcess is empty too.
type heldProcess struct{}

func holdProcess(metadata.Process) (*heldProcess, error) { return nil, errors.ErrUnsupported }

func (*heldProcess) alive() error { return errors.ErrUnsupported }
func (*heldProcess) close()       {}
