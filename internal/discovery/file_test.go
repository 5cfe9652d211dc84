package discovery

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFileIsTakenWhenItChanges writes, breaks, swaps by link, removes and restores a file.
func TestFileIsTakenWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "engines.yaml")
	var taken []string
	f := NewFile(path, 0, func(_ string, b []byte) error {
		if strings.Contains(string(b), "bad") {
			return errors.New("a bad file")
		}
		taken = append(taken, string(b))
		return nil
	}, quiet())
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what     string
		do       func()
		last     string // taken
		n        int    // how often something was
		bad      bool
		failures uint64
	}{
		{"missing", func() {}, "", 0, true, 1},
		{"still missing", func() {}, "", 0, true, 1},
		{"there", func() { put("one", "1"); link("one") }, "1", 1, false, 1},
		{"the same", func() {}, "1", 1, false, 1},
		{"swapped by link", func() { put("two", "2"); link("two") }, "2", 2, false, 1},
		{"a link to nothing", func() { link("none") }, "2", 2, true, 2},
		{"to one that cannot be used", func() { put("bad", "bad"); link("bad") }, "2", 2, true, 3},
		{"which stays so", func() {}, "2", 2, true, 3},
		{"written in place", func() { put("bad", "bad as well") }, "2", 2, true, 4},
		{"good again", func() { put("bad", "3") }, "3", 3, false, 4},
		{"too big", func() { put("bad", strings.Repeat("x", mostBytes+1)) }, "3", 3, true, 5},
		{"as it was", func() { put("bad", "3") }, "3", 4, false, 5},
		{"a pipe", func() {
			if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
				t.Fatal(err)
			}
			link("pipe")
		}, "3", 4, true, 6},
		{"a file again", func() { link("two") }, "2", 5, false, 6},
	} {
		step.do()
		err := f.Look()
		s := f.Stats()
		last := ""
		if len(taken) > 0 {
			last = taken[len(taken)-1]
		}
		if (err != nil) != step.bad || s.Bad != step.bad || last != step.last || len(taken) != step.n || s.Failures != step.failures {
			t.Fatalf("%s: %v, %+v, taken %q; want %+v", step.what, err, s, taken, step)
		}
	}
}
