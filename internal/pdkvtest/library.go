package pdkvtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// Library returns the path of bin/libpdkv.so, built from the tree as it is: the first test that asks builds it, all others
// find it. It skips the test where there is no C compiler.
func Library(t testing.TB) string {
	t.Helper()
	CC(t)
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// built is the library of this test binary; others that build it at the same time wait for each other.
var built = sync.OnceValues(func() (string, error) {
	root, err := root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(bin, ".libpdkv.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and so the lock is given back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	path := filepath.Join(bin, "libpdkv.so")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", path, "./kvplane/capi")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	_ = os.Remove(filepath.Join(bin, "libpdkv.h")) // the header is pdkv.h
	return path, nil
})

// CC returns the C compiler, or skips the test.
func CC(t testing.TB) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc) is installed")
	}
	return cc
}

// root returns the repository's folder.
func root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the working folder")
		}
		dir = up
	}
	return "", err
}

// Root returns the repository's folder.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
