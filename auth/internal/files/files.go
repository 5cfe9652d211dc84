// Package files writes and reads small files that must be there whole or not at all: keys and lists of API keys. It knows nothing
// of what is in them. Package auth calls it.
package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Unfinished begins and UnfinishedEnd ends what a file is called until it is there in full.
const (
	Unfinished    = ".pdrouter-"
	UnfinishedEnd = ".tmp"
)

// WriteTemporary writes a file beside path that is there in full, and returns its name. It is readable by its owner alone
// until it gets its mode. A file that it is to replace gives it its owner, too: like, or nil.
func WriteTemporary(path string, b []byte, mode os.FileMode, like os.FileInfo) (name string, err error) {
	t, err := os.CreateTemp(filepath.Dir(path), Unfinished+"*"+UnfinishedEnd) // with mode 0600
	if err != nil {
		return "", err
	}
	_, err = t.Write(b)
	if err == nil && like != nil {
		err = keepOwner(t, like)
	}
	if err = errors.Join(err, t.Chmod(mode), t.Sync(), t.Close()); err != nil {
		return "", errors.Join(err, os.Remove(t.Name()))
	}
	return t.Name(), nil
}

// Write replaces a file by one rename: it is there as it was, or in full.
func Write(path string, b []byte, mode os.FileMode, like os.FileInfo) error {
	name, err := WriteTemporary(path, b, mode, like)
	if err != nil {
		return err
	}
	if err := os.Rename(name, path); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was renamed in a folder outlast a loss of power.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// keepOwner gives a file the owner of another. Who may not do so must not replace that one: its reader may be shut out.
func keepOwner(f *os.File, like os.FileInfo) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	uid, gid, ok := owner(like)
	if mine, group, _ := owner(info); !ok || mine == uid && group == gid {
		return nil
	}
	if err := f.Chown(uid, gid); err != nil {
		return fmt.Errorf("the file is another's: %w", err)
	}
	return nil
}

// ReadBounded reads a file of at most limit bytes and returns who may do what with it.
func ReadBounded(path string, limit int64) ([]byte, os.FileMode, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(b)) > limit {
		return nil, 0, fmt.Errorf("more than %d bytes", limit)
	}
	return b, info.Mode().Perm(), nil
}
