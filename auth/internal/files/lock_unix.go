//go:build unix

package files

import (
	"errors"
	"os"
	"syscall"
)

// owner returns whose file it is; false if that is unknown.
func owner(info os.FileInfo) (uid, gid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(s.Uid), int(s.Gid), true
}

// LockDir waits until nobody else changes the files of a folder, and returns what lets others do so. The lock ends with the
// process at the latest.
func LockDir(path string) (unlock func(), err error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = d.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { _ = d.Close() }, nil
}
