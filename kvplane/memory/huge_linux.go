package memory

import "golang.org/x/sys/unix"

// hugePages asks for huge pages under mapped memory, which are faster to copy between processes. A kernel without them
// is right too.
func hugePages(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
