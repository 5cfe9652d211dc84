//go:build !linux

package procid

import (
	"errors"

	"pdrouter/metadata"
)

// Self is unknown here, so no process is proven dead by it.
func Self() metadata.Process { return metadata.Process{} }

// Exited is never known here.
func Exited(metadata.Process) bool { return false }

// Held is empty: no process can be held on this system.
type Held struct{}

// Hold refuses every process.
func Hold(metadata.Process) (*Held, error) { return nil, errors.ErrUnsupported }

// Alive is always an error.
func (*Held) Alive() error { return errors.ErrUnsupported }

// Close does nothing.
func (*Held) Close() {}
