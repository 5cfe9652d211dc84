package auth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// writeTemporary writes a file beside path that is there in full, and returns its name. It is readable by its owner alone
// until it gets its mode. A file that it is to replace gives it its owner, too: like, or nil.
func writeTemporary(path string, b []byte, mode os.FileMode, like os.FileInfo) (name string, err error) {
	t, err := os.CreateTemp(filepath.Dir(path), temporary+"*.tmp") // with mode 0600
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

// writeFile replaces a file by one rename: it is there as it was, or in full.
func writeFile(path string, b []byte, mode os.FileMode, like os.FileInfo) error {
	name, err := writeTemporary(path, b, mode, like)
	if err != nil {
		return err
	}
	if err := os.Rename(name, path); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes what was renamed in a folder outlast a loss of power.
func syncDir(path string) error {
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
