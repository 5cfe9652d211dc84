package embed

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane/memory"
)

// readByte copies one byte of this process's memory, or says that it is not mapped. A process that may not ask, as in some
// containers, takes everything.
func readByte(to []byte, address uint64) error {
	err := memory.CopyFromProcess(os.Getpid(), [][]byte{to}, []uint64{address})
	if errors.Is(err, unix.EFAULT) {
		return err
	}
	return nil
}
