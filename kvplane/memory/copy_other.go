//go:build !linux

package memory

import (
	"errors"
	"fmt"
)

// CopyFromProcess copies bytes out of another process's memory.
func CopyFromProcess(_ int, _ [][]byte, _ []uint64) error {
	return fmt.Errorf("kvplane: copy from process: %w", errors.ErrUnsupported)
}
