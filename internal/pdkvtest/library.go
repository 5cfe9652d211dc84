package pdkvtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Library returns the path of bin/libpdkv.so, built from the tree as it is: the first test that asks builds it, all others
// find it. It skips the test where there is no C compiler.
func Library(t testing.TB) string {
	t.Helper()
	CC(t)
	root := Root(t)
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(bin, ".libpdkv.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() // and so the lock is given back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(bin, "libpdkv.so")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", path, "./kvplane/capi")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	_ = os.Remove(filepath.Join(bin, "libpdkv.h")) // the header is pdkv.h
	return path
}

// CC returns the C compiler, or skips the test.
func CC(t testing.TB) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc) is installed")
	}
	return cc
}

// Root returns the repository's folder.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if up := filepath.Dir(dir); up != dir {
			dir = up
			continue
		}
		break
	}
	t.Fatalf("no go.mod above the working folder: %v", err)
	return ""
}
